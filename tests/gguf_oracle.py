"""llama.cpp's verdict on a GGUF file, from the library in the xllamacpp wheel, in a process that a file may crash.

`Oracle` sends requests; run as a program, this file answers them: it reads cases from stdin and writes two lines of
JSON for each, the result of `gguf_init_from_file` for the header, then that of loading the whole model. The data of the
tensors is zeros (a hole in the file), which loading does not read.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

CASE = struct.Struct("<QQ")
SECONDS = 20  # for one case; far beyond any that ends
MEMORY_BYTES = 8 << 30  # address space of the answering process: what it cannot allocate, it refuses
ERROR_LEVEL = 4  # ggml_log_level


@attrs.frozen
class Verdict:
    """The verdict of llama.cpp: whether the header can be read, whether the model loads, and the error."""

    header: bool
    loads: bool
    message: str


class Oracle:
    """Requests many verdicts from one process, and starts another when a file has crashed it."""

    def __init__(self):
        self.died = 0
        self._process = None

    def ask(self, header, size):
        """Return the verdict on a file of that size that begins with these bytes."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(CASE.pack(len(header), size) + header)
            self._process.stdin.flush()
        answers = [self._process.stdout.readline(), self._process.stdout.readline()]
        read = [json.loads(line) for line in answers if line]
        if len(read) < 2:
            code = self._process.wait()
            self.close()
            self.died += 1
            return Verdict(bool(read) and read[0]["ok"], loads=False, message=f"died of {code}")
        return Verdict(read[0]["ok"], read[1]["ok"], read[0]["error"] or read[1]["error"])

    def close(self):
        """End the answering process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main():
    """Answer until stdin ends."""
    engine = load_library()
    errors = []
    callback = LOG(lambda level, text, _: errors.append(text) if level == ERROR_LEVEL else None)
    engine.ggml_log_set(callback, None)
    engine.llama_log_set(callback, None)
    engine.llama_backend_init()
    parameters = engine.llama_model_default_params()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.NamedTemporaryFile(suffix=".gguf", dir=folder) as file:
        while start := sys.stdin.buffer.read(CASE.size):
            length, size = CASE.unpack(start)
            file.seek(0)
            file.truncate(0)
            file.write(sys.stdin.buffer.read(length))
            file.flush()
            file.truncate(size)
            signal.alarm(SECONDS)
            for function, parameter, free in (
                (engine.gguf_init_from_file, InitParameters(no_alloc=True), engine.gguf_free),
                (engine.llama_model_load_from_file, parameters, engine.llama_model_free),
            ):
                errors.clear()
                made = function(file.name.encode(), parameter)
                if made:
                    free(made)
                message = "" if made else b"".join(errors[:2]).decode("utf-8", "replace").strip()
                answer = {"ok": bool(made), "error": message.replace(file.name, "FILE")}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class InitParameters(ctypes.Structure):
    """struct gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


class ModelParameters(ctypes.Structure):
    """struct llama_model_params, opaque and larger than that of any version, since only defaults are passed on."""

    _fields_ = (("opaque", ctypes.c_uint64 * 128),)


def load_library():
    """Return the engine's library: xllamacpp exports llama.cpp's C functions."""
    import xllamacpp  # 100 MB that only the answering process needs

    library = ctypes.CDLL(next(str(path) for path in Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")))
    for name, result, arguments in (
        ("gguf_init_from_file", ctypes.c_void_p, [ctypes.c_char_p, InitParameters]),
        ("gguf_free", None, [ctypes.c_void_p]),
        ("llama_model_default_params", ModelParameters, []),
        ("llama_model_load_from_file", ctypes.c_void_p, [ctypes.c_char_p, ModelParameters]),
        ("llama_model_free", None, [ctypes.c_void_p]),
        ("ggml_blck_size", ctypes.c_int64, [ctypes.c_int]),
        ("ggml_type_size", ctypes.c_size_t, [ctypes.c_int]),
        ("ggml_type_name", ctypes.c_char_p, [ctypes.c_int]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


if __name__ == "__main__":
    main()
