"""The one HTTP/1.1 server and client for every engine, probe and gateway byte, on Trio."""
