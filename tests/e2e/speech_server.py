"""A server with OpenAI's `/v1/audio/transcriptions` on pocketsphinx: an example of an engine of the owner's.

    python speech_server.py --model FOLDER --host 127.0.0.1 --port 8081 --beam 1e-48

FOLDER is the one that pocketsphinx ships, `model/en-us`. The server reads WAV (16 kHz, mono, 16 bits).
"""

import argparse
import io
import json
import sys
import threading
import wave
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pocketsphinx import Decoder

options = argparse.ArgumentParser()
for name in ("--model", "--host", "--port", "--beam"):
    options.add_argument(name, required=True)
given = options.parse_args()
decoder = Decoder(
    hmm=f"{given.model}/en-us",
    lm=f"{given.model}/en-us.lm.bin",
    dict=f"{given.model}/cmudict-en-us.dict",
    beam=float(given.beam),
    loglevel="FATAL",
)
one_at_a_time = threading.Lock()


def transcribed(audio: bytes) -> str:
    """Return the words in a WAV file."""
    with wave.open(io.BytesIO(audio)) as sound, one_at_a_time:
        decoder.start_utt()
        decoder.process_raw(sound.readframes(sound.getnframes()), full_utt=True)
        decoder.end_utt()
    found = decoder.hyp()
    return found.hypstr if found else ""


class Speech(BaseHTTPRequestHandler):
    """Answers the health check, and forms with a `file`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Answer the health check: the model is loaded before the server listens."""
        self.answer(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self):
        """Transcribe the `file` of a form."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/audio/transcriptions":
            return self.answer(404, {"error": {"message": f"no path {self.path}"}})
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        fields = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts()
        }
        return self.answer(200, {"text": transcribed(fields["file"])})

    def answer(self, status, value):
        """Send JSON."""
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


server = ThreadingHTTPServer((given.host, int(given.port)), Speech)
sys.stderr.write(f"speech server listening on port {given.port}\n")
server.serve_forever()
