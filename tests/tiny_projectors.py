"""Tiny projectors of four kinds, and a model that names the colour of a picture: red or blue, in one token."""

import struct
import zlib

import gguf
import numpy as np

from tiny_models import DEMO, WIDTH, Writer

SIZE, PATCH, INNER = 32, 8, 96
KINDS = ("mlp", "gemma3", "qwen2vl_merger", "pixtral")


class Projector:
    """Writes one projector: its encoder passes the colours of a patch on, as its first two values."""

    def __init__(self, path, kind, *, width=WIDTH, inner=INNER, layers=2, size=SIZE, heads=4, seed=None):
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.gguf = gguf.GGUFWriter(path, "clip")
        add = self.gguf
        add.add_string("general.type", "mmproj")
        add.add_string("clip.projector_type", kind)
        add.add_bool("clip.has_vision_encoder", True)
        add.add_bool("clip.use_gelu", True)
        for name, value in {
            "image_size": size,
            "patch_size": PATCH,
            "embedding_length": inner,
            "feed_forward_length": 2 * inner,
            "block_count": layers,
            "projection_dim": width,
            "attention.head_count": heads,
        }.items():
            add.add_uint32(f"clip.vision.{name}", value)
        add.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        add.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        add.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
        self.kind, self.width, self.inner, self.size = kind, width, inner, size
        self.patches()
        for at in range(layers):
            self.layer(at)
        getattr(self, f"head_of_{kind}")()
        add.write_header_to_file()
        add.write_kv_data_to_file()
        add.write_tensors_to_file()
        add.close()

    def zeros(self, name, *shape):
        values = np.zeros(shape) if self.rng is None else self.rng.standard_normal(shape) * 0.2
        self.gguf.add_tensor(name, values.astype(np.float32))

    def ones(self, name, *shape):
        self.gguf.add_tensor(name, np.ones(shape, np.float32))

    def identity(self, name, rows, columns):
        self.gguf.add_tensor(name, np.eye(rows, columns, dtype=np.float32))

    def patches(self):
        weights = np.zeros((self.inner, 3, PATCH, PATCH), np.float32)
        weights[0, 0], weights[1, 2] = 1 / PATCH, 1 / PATCH  # red, blue
        if self.kind == "qwen2vl_merger":  # two frames
            self.gguf.add_tensor("v.patch_embd.weight", weights / 2)
            self.gguf.add_tensor("v.patch_embd.weight.1", weights / 2)
            return
        self.gguf.add_tensor("v.patch_embd.weight", weights)
        if self.kind == "mlp":
            self.zeros("v.class_embd", self.inner)
            self.zeros("v.position_embd.weight", (self.size // PATCH) ** 2 + 1, self.inner)
        if self.kind == "gemma3":
            self.zeros("v.patch_embd.bias", self.inner)
            self.zeros("v.position_embd.weight", (self.size // PATCH) ** 2, self.inner)

    def layer(self, at):
        block, inner = f"v.blk.{at}", self.inner
        for part in ("q", "k", "v", "out"):
            self.zeros(f"{block}.attn_{part}.weight", inner, inner)
            self.zeros(f"{block}.attn_{part}.bias", inner)
        for part in ("ln1", "ln2"):
            self.ones(f"{block}.{part}.weight", inner)
            if self.kind != "pixtral":
                self.zeros(f"{block}.{part}.bias", inner)
        if self.kind == "pixtral":
            self.zeros(f"{block}.ffn_gate.weight", 2 * inner, inner)
        self.zeros(f"{block}.ffn_up.weight", 2 * inner, inner)
        self.zeros(f"{block}.ffn_down.weight", inner, 2 * inner)
        if self.kind != "pixtral":
            self.zeros(f"{block}.ffn_up.bias", 2 * inner)
            self.zeros(f"{block}.ffn_down.bias", inner)

    def head_of_mlp(self):
        self.ones("v.pre_ln.weight", self.inner)
        self.zeros("v.pre_ln.bias", self.inner)
        self.identity("mm.0.weight", self.width, self.inner)
        self.zeros("mm.0.bias", self.width)
        self.identity("mm.2.weight", self.width, self.width)
        self.zeros("mm.2.bias", self.width)

    def head_of_gemma3(self):
        self.ones("v.post_ln.weight", self.inner)
        self.zeros("v.post_ln.bias", self.inner)
        self.ones("mm.soft_emb_norm.weight", self.inner)
        self.identity("mm.input_projection.weight", self.inner, self.width)

    def head_of_qwen2vl_merger(self):
        self.ones("v.post_ln.weight", self.inner)
        self.zeros("v.post_ln.bias", self.inner)
        self.identity("mm.0.weight", 4 * self.inner, 4 * self.inner)
        self.zeros("mm.0.bias", 4 * self.inner)
        self.identity("mm.2.weight", self.width, 4 * self.inner)
        self.zeros("mm.2.bias", self.width)

    def head_of_pixtral(self):
        self.ones("v.pre_ln.weight", self.inner)
        self.identity("mm.1.weight", self.width, self.inner)
        self.zeros("mm.1.bias", self.width)
        self.identity("mm.2.weight", self.width, self.width)
        self.zeros("mm.2.bias", self.width)
        self.zeros("v.token_embd.img_break", self.width)


class ColourModel(Writer):
    """A model that answers `R` to a red picture and `B` to a blue one, and then stops.

    Its one block adds the mean of all positions, where only pictures have the first two values.
    """

    def __init__(self, path):
        super().__init__(path, "llama", 1)
        self.gguf.add_head_count_kv(4)
        self.gguf.add_rope_dimension_count(16)
        for name in ("attn_q", "attn_k"):
            self.put(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH)))
        for name in ("attn_v", "attn_output"):
            self.put(f"blk.0.{name}.weight", np.eye(WIDTH))
        for name in ("attn_norm", "ffn_norm"):
            self.ones(f"blk.0.{name}.weight", WIDTH)
        for name, shape in (("gate", (128, WIDTH)), ("up", (128, WIDTH)), ("down", (WIDTH, 128))):
            self.put(f"blk.0.ffn_{name}.weight", np.zeros(shape))
        self.close()

    def random(self, name, *shape):
        """Write the vectors of the words instead of random ones."""
        words = gguf.GGUFReader(DEMO).fields["tokenizer.ggml.tokens"].contents()
        red, blue, end = (words.index(word) for word in ("R", "B", "<|end|>"))
        values = np.zeros(shape)
        if name == "token_embd.weight":
            values[:, 3] = 0.01  # no vector is zero
            values[[red, blue], 2] = 100
        else:
            values[red, 0] = values[blue, 1] = values[end, 2] = 10
        self.put(name, values)

    def put(self, name, values):
        self.gguf.add_tensor(name, values.astype(np.float32))


def png(red, green, blue, side=SIZE):
    """Return a picture of one colour as PNG."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
