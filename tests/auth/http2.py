"""A small HTTP/2 client for tests that send data which ordinary gRPC clients do not send.

It writes the frames that the test specifies: any bytes in header names and values, endless
header blocks, frames in a wrong order. It reads the server's answers, and acknowledges the
server's SETTINGS and PING frames itself (but not within an unfinished header block, where only
CONTINUATION frames are allowed).

    with Connection(daemon.address) as connection:
        result = connection.call("/resident.v1.Executor/Run", [("authorization", "Bearer x")])
        assert result.grpc_status == 16, result

        stream = connection.new_stream()
        connection.send_headers(stream, request_headers("/a/b"), end_headers=False)
        connection.send_continuation(stream, encode_headers([("x", "y" * 16000)]))
        assert connection.result(stream).ended == CLOSED

Only Python's standard library is used. A connection belongs to one thread.
"""

import os
import select
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types (RFC 9113, section 6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, \
    CONTINUATION = range(10)
# Frame flags.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20
# Settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, \
    MAX_HEADER_LIST_SIZE = range(1, 7)
# Error codes of RST_STREAM and GOAWAY.
NO_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0, 8, 11

# How a stream ended (Result.ended).
ANSWERED = "answered"  # The server sent the end of the stream.
RESET = "reset"  # The server sent RST_STREAM.
CLOSED = "closed"  # The connection closed first.
OPEN = "open"  # It had not ended at the timeout.

DEFAULT_TIMEOUT_S = 30
# More than any test sends and receives in one call.
RECEIVE_WINDOW = 1 << 30

STATIC_TABLE = [tuple(line.partition("=")[::2]) for line in """\
:authority
:method=GET
:method=POST
:path=/
:path=/index.html
:scheme=http
:scheme=https
:status=200
:status=204
:status=206
:status=304
:status=400
:status=404
:status=500
accept-charset
accept-encoding=gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate""".split("\n")]
STATIC_TABLE = [(name.encode(), value.encode()) for name, value in STATIC_TABLE]

# Symbols by the length of their Huffman code (RFC 7541, appendix B). The code is canonical:
# the lengths give the codes. 256 is the end of a string.
HUFFMAN_LENGTHS = """\
5: 48-50 97 99 101 105 111 115-116
6: 32 37 45-47 51-57 61 65 95 98 100 102-104 108-110 112 114 117
7: 58 66-87 89 106-107 113 118-122
8: 38 42 44 59 88 90
10: 33-34 40-41 63
11: 39 43 124
12: 35 62
13: 0 36 64 91 93 126
14: 94 125
15: 60 96 123
19: 92 195 208
20: 128 130-131 162 184 194 224 226
21: 153 161 167 172 176-177 179 209 216-217 227 229-230
22: 129 132-134 136 146 154 156 160 163-164 169-170 173 178 181 185-187 189-190 196 198 228 232-233
23: 1 135 137-141 143 147 149-152 155 157-158 165-166 168 174-175 180 182-183 188 191 197 231 239
24: 9 142 144-145 148 159 171 206 215 225 236-237
25: 199 207 234-235
26: 192-193 200-202 205 210 213 218-219 238 240 242-243 255
27: 203-204 211-212 214 221-223 241 244-248 250-254
28: 2-8 11-12 14-21 23-31 127 220 249
30: 10 13 22 256"""


def _huffman_symbols():
    """{(length, code): symbol}."""
    symbols = {}
    code = length = 0
    for line in HUFFMAN_LENGTHS.split("\n"):
        bits, _, ranges = line.partition(": ")
        code <<= int(bits) - length
        length = int(bits)
        for part in ranges.split():
            first, _, last = part.partition("-")
            for symbol in range(int(first), int(last or first) + 1):
                symbols[length, code] = symbol
                code += 1
    return symbols


HUFFMAN_SYMBOLS = _huffman_symbols()


class ConnectionClosed(Exception):
    """The server has closed the connection."""


class BadBytes(Exception):
    """The server sent data that is not valid HTTP/2."""


def to_bytes(text):
    return text if isinstance(text, bytes) else text.encode("latin-1")


def decode_huffman(data):
    decoded = bytearray()
    code = length = 0
    for byte in data:
        for bit in range(7, -1, -1):
            code = code << 1 | byte >> bit & 1
            length += 1
            symbol = HUFFMAN_SYMBOLS.get((length, code))
            if symbol is not None:
                decoded.append(symbol)  # 256 is not a byte: ValueError.
                code = length = 0
    if length > 7 or code != (1 << length) - 1:
        raise BadBytes("the padding of a Huffman string is wrong")
    return bytes(decoded)


def encode_integer(value, prefix_bits, first=0):
    """RFC 7541, section 5.1. `first` has the bits before the prefix."""
    max_prefix = (1 << prefix_bits) - 1
    if value < max_prefix:
        return bytes([first | value])
    encoded = bytearray([first | max_prefix])
    value -= max_prefix
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_string(text):
    text = to_bytes(text)
    return encode_integer(len(text), 7) + text


def encode_headers(headers):
    """A header block: every header is a literal that is not added to the table, without Huffman
    coding. Names and values may have any bytes."""
    return b"".join(b"\0" + encode_string(name) + encode_string(value) for name, value in headers)


class HeaderDecoder:
    """Decodes the header blocks of one connection (RFC 7541)."""

    def __init__(self, table_size=4096):
        self.table = []  # The newest entry first.
        self.table_size = table_size

    def decode(self, block):
        """[(name, value)], as bytes."""
        self.block, self.at = block, 0
        headers = []
        while self.at < len(block):
            first = block[self.at]
            if first & 0x80:
                headers.append(self._entry(self._integer(7)))
            elif first & 0xe0 == 0x20:
                self.table_size = self._integer(5)
                self._evict()
            else:
                keep = first & 0x40
                index = self._integer(6 if keep else 4)
                name = self._entry(index)[0] if index else self._string()
                header = (name, self._string())
                headers.append(header)
                if keep:
                    self.table.insert(0, header)
                    self._evict()
        return headers

    def _evict(self):
        while sum(len(name) + len(value) + 32 for name, value in self.table) > self.table_size:
            self.table.pop()

    def _entry(self, index):
        if not 1 <= index <= len(STATIC_TABLE) + len(self.table):
            raise BadBytes("no header has index {}".format(index))
        return (STATIC_TABLE + self.table)[index - 1]

    def _integer(self, prefix_bits):
        max_prefix = (1 << prefix_bits) - 1
        value = self._byte() & max_prefix
        if value < max_prefix:
            return value
        shift = 0
        while True:
            byte = self._byte()
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _byte(self):
        if self.at >= len(self.block):
            raise BadBytes("a header block ends within a header")
        self.at += 1
        return self.block[self.at - 1]

    def _string(self):
        huffman = self.at < len(self.block) and self.block[self.at] & 0x80
        length = self._integer(7)
        if self.at + length > len(self.block):
            raise BadBytes("a header block ends within a string")
        text = self.block[self.at:self.at + length]
        self.at += length
        return decode_huffman(text) if huffman else text


def encode_frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags,
                                                              stream) + payload


def encode_settings(settings):
    return b"".join(struct.pack(">HI", name, value) for name, value in settings.items())


def encode_message(message, compressed=False):
    """A gRPC message in the encoding of DATA frames. `compressed`: its flag."""
    return struct.pack(">BI", compressed, len(message)) + message


def request_headers(path, more=(), authority="localhost", scheme="http"):
    """The headers of an ordinary gRPC call, followed by `more`."""
    return [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority),
            ("te", "trailers"), ("content-type", "application/grpc"),
            ("user-agent", "http2.py")] + list(more)


def tls_context(ca=None, certificate=None, key=None, alpn=("h2",)):
    """For Connection(tls=...). `ca`, `certificate`, `key`: paths of PEM files. Without `ca` every
    certificate of the server is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(list(alpn))
    return context


def split_address(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Result:
    """The state of a stream."""

    def __init__(self):
        self.ended = OPEN
        self.headers = []  # The first block: the response's headers, or only the trailers.
        self.trailers = []  # The last block; the same list if there is only one block.
        self.data = b""
        self.error_code = None  # Of RST_STREAM.

    def header(self, name):
        """The value of a trailer or header, as str; None if it is absent."""
        for found, value in self.trailers + self.headers:
            if found == to_bytes(name):
                return value.decode("latin-1")
        return None

    @property
    def http_status(self):
        status = self.header(":status")
        return None if status is None else int(status)

    @property
    def grpc_status(self):
        """The number of the status code; None if the server sent none."""
        status = self.header("grpc-status")
        return None if status is None else int(status)

    @property
    def grpc_message(self):
        """As it was sent, percent-encoded."""
        return self.header("grpc-message")

    @property
    def messages(self):
        """The gRPC messages that were received completely."""
        found, at = [], 0
        while at + 5 <= len(self.data):
            length = struct.unpack(">I", self.data[at + 1:at + 5])[0]
            if at + 5 + length > len(self.data):
                break
            found.append(self.data[at + 5:at + 5 + length])
            at += 5 + length
        return found

    def __repr__(self):
        return "{}: http {}, grpc-status {}, grpc-message {!r}, error code {}, {} bytes".format(
            self.ended, self.http_status, self.grpc_status, self.grpc_message, self.error_code,
            len(self.data))


class Connection:
    """One connection to `address` ("host:port").

    `tls`: an ssl.SSLContext (tls_context()); None: no TLS. `preface`: whether to send HTTP/2's
    connection preface; if not, nothing is sent. `source`: the local address to connect from,
    e.g. "127.0.0.2".
    """

    def __init__(self, address, tls=None, preface=True, settings=None, source=None,
                 server_name="localhost", timeout=DEFAULT_TIMEOUT_S, receive_buffer=None):
        self.timeout = timeout
        self.scheme = "http" if tls is None else "https"
        self.closed = False  # By the server.
        self.goaway = None  # (last stream, error code, text), once the server has sent it.
        self.pings_answered = 0  # PING frames of the server.
        self.pongs = 0  # Acknowledgements of our PING frames.
        self.server_settings = {}
        self.results = {}
        self.send_window = {0: 65535}
        self._initial_window = 65535
        self._received = b""
        self._block = None  # (stream, flags, bytes) of an unfinished header block.
        self._next_stream = 1
        self._sends_block = False  # We have sent an unfinished header block.
        self._answers = b""  # Acknowledgements to send after the block.
        self._decoder = HeaderDecoder()
        self._unacked = 0
        host, port = split_address(address)
        self.socket = socket.create_connection(
            (host, port), timeout, None if source is None else (source, 0))
        try:
            if receive_buffer is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=server_name)
            if preface:
                self.send(PREFACE)
                self.send_settings(settings if settings is not None else
                                   {ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: RECEIVE_WINDOW})
                self.send_window_update(0, RECEIVE_WINDOW - 65535)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self, reset=False):
        """Ends the connection; with `reset` by a TCP RST."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # Sending.

    def send(self, data):
        """Sends any bytes. ConnectionClosed: the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, ssl.SSLError) as error:
            self.closed = True
            raise ConnectionClosed(str(error)) from error

    def send_frame(self, kind, flags=0, stream=0, payload=b""):
        self.send(encode_frame(kind, flags, stream, payload))

    def new_stream(self):
        """Returns the number of a new stream."""
        stream = self._next_stream
        self._next_stream += 2
        self.results[stream] = Result()
        self.send_window[stream] = self._initial_window
        return stream

    def send_headers(self, stream, headers=(), end_stream=False, end_headers=True, block=None):
        """Sends a HEADERS frame; `block` replaces the encoded `headers`."""
        flags = (END_STREAM if end_stream else 0) | (END_HEADERS if end_headers else 0)
        self._sends_block = not end_headers
        self.send_frame(HEADERS, flags, stream,
                        encode_headers(headers) if block is None else block)
        self._answer()

    def send_long_headers(self, stream, headers, end_stream=False, frame_bytes=16384):
        """Sends a HEADERS frame and as many CONTINUATION frames as the headers need."""
        block = encode_headers(headers)
        pieces = [block[i:i + frame_bytes] for i in range(0, len(block), frame_bytes)]
        self.send_headers(stream, end_stream=end_stream, end_headers=len(pieces) == 1,
                          block=pieces[0])
        for i, piece in enumerate(pieces[1:], 2):
            self.send_continuation(stream, piece, end_headers=i == len(pieces))

    def send_continuation(self, stream, block, end_headers=False):
        self._sends_block = not end_headers
        self.send_frame(CONTINUATION, END_HEADERS if end_headers else 0, stream, block)
        self._answer()

    def send_data(self, stream, data, end_stream=False):
        """Sends one DATA frame, regardless of the window."""
        self.send_window[stream] = self.send_window.get(stream, 0) - len(data)
        self.send_window[0] -= len(data)
        self.send_frame(DATA, END_STREAM if end_stream else 0, stream, data)

    def send_message(self, stream, message, end_stream=True, timeout=None, compressed=False):
        """Sends a gRPC message, in frames that fit the server's window. Stops if the stream
        ends."""
        data = memoryview(encode_message(message, compressed))  # Pieces of it are not copied.
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while data and self.results[stream].ended == OPEN:
            room = min(self.send_window[0], self.send_window[stream], 16384)
            if room <= 0:
                if time.monotonic() > deadline:
                    raise TimeoutError("the server's window stays closed")
                self.read(0.1)
                continue
            piece, data = data[:room], data[room:]
            self.send_data(stream, piece, end_stream and not data)
            self.read(0)

    def send_rst(self, stream, error_code=CANCEL):
        self.send_frame(RST_STREAM, 0, stream, struct.pack(">I", error_code))

    def send_settings(self, settings=None):
        self.send_frame(SETTINGS, 0, 0, encode_settings(settings or {}))

    def send_ping(self, data=b"\0" * 8):
        self.send_frame(PING, 0, 0, data)

    def send_goaway(self, last_stream=0, error_code=NO_ERROR, text=b""):
        self.send_frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, error_code) + text)

    def send_window_update(self, stream, increment):
        self.send_frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))

    def _answer(self, frame=b""):
        self._answers += frame
        if self._answers and not self._sends_block:
            answers, self._answers = self._answers, b""
            self.send(answers)

    # Receiving.

    def read(self, timeout=0):
        """Reads and handles data from the server, waiting for up to `timeout` seconds.
        False: nothing was received, or the connection is closed."""
        if self.closed:
            return False
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0
        if not pending and not select.select([self.socket], [], [], timeout)[0]:
            return False
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(1 << 18)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except (OSError, ssl.SSLError):
            data = b""
        finally:
            self.socket.settimeout(self.timeout)
        if not data:
            self._on_closed()
            return False
        self._received += data
        try:
            self._handle_frames()
        except ConnectionClosed:
            self._on_closed()
        return True

    def read_until(self, done, timeout=None):
        """Reads until done() or the connection is closed. Returns done()."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or self.closed:
                return done()
            self.read(left)
        return True

    def wait_closed(self, timeout=None):
        """Whether the server closes the connection within the time."""
        return self.read_until(lambda: self.closed, timeout)

    def result(self, stream, timeout=None):
        """Waits for the end of the stream; Result.ended is OPEN if it did not end in time."""
        result = self.results[stream]
        self.read_until(lambda: result.ended != OPEN, timeout)
        return result

    def call(self, path, headers=(), message=b"", timeout=None):
        """An ordinary call with one message."""
        stream = self.new_stream()
        try:
            self.send_headers(stream, request_headers(path, headers, scheme=self.scheme))
            self.send_message(stream, message, timeout=timeout)
        except ConnectionClosed:
            # The answer may have been received before the connection was closed.
            self.closed = False
            while self.read(0.1):
                pass
            self._on_closed()
        return self.result(stream, timeout)

    def _on_closed(self):
        self.closed = True
        for result in self.results.values():
            if result.ended == OPEN:
                result.ended = CLOSED

    def _handle_frames(self):
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            payload = self._received[9:9 + length]
            self._received = self._received[9 + length:]
            self._handle(kind, flags, stream & 0x7fffffff, payload)

    def _handle(self, kind, flags, stream, payload):
        result = self.results.get(stream, Result())
        if kind in (HEADERS, DATA) and flags & PADDED:
            payload = payload[1:len(payload) - payload[0]]
        if kind == SETTINGS and not flags & ACK:
            self._on_settings(payload)
        elif kind == PING:
            if flags & ACK:
                self.pongs += 1
            else:
                self._answer(encode_frame(PING, ACK, 0, payload))
                self.pings_answered += 1
        elif kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            self.goaway = (last, code, payload[8:])
        elif kind == WINDOW_UPDATE:
            self.send_window[stream] = (self.send_window.get(stream, self._initial_window) +
                                        struct.unpack(">I", payload)[0])
        elif kind == RST_STREAM:
            if result.ended == OPEN:
                result.ended = RESET
            result.error_code = struct.unpack(">I", payload)[0]
        elif kind == HEADERS:
            if flags & WITH_PRIORITY:
                payload = payload[5:]
            self._on_block(stream, flags, payload)
        elif kind == CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise BadBytes("a CONTINUATION frame without HEADERS")
            before = self._block
            self._on_block(stream, before[1] | flags & END_HEADERS, before[2] + payload)
        elif kind == DATA:
            result.data += payload
            self._unacked += len(payload)
            if self._unacked > RECEIVE_WINDOW // 4:
                self._answer(encode_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacked)))
                self._unacked = 0
            if flags & END_STREAM:
                result.ended = ANSWERED

    def _on_settings(self, payload):
        for at in range(0, len(payload), 6):
            name, value = struct.unpack(">HI", payload[at:at + 6])
            self.server_settings[name] = value
            if name == INITIAL_WINDOW_SIZE:
                for stream in self.send_window:
                    if stream != 0:
                        self.send_window[stream] += value - self._initial_window
                self._initial_window = value
        self._answer(encode_frame(SETTINGS, ACK))

    def _on_block(self, stream, flags, block):
        if not flags & END_HEADERS:
            self._block = (stream, flags, block)
            return
        self._block = None
        result = self.results.get(stream, Result())
        headers = self._decoder.decode(block)
        if not result.headers:
            result.headers = headers
        result.trailers = headers
        if flags & END_STREAM:
            result.ended = ANSWERED


def call(address, path, headers=(), message=b"", tls=None, timeout=DEFAULT_TIMEOUT_S):
    """One call over a separate connection."""
    with Connection(address, tls=tls, timeout=timeout) as connection:
        return connection.call(path, headers, message)


def resident_bytes(pid):
    """Resident memory of a process."""
    with open("/proc/{}/statm".format(pid), encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid):
    """Processor time that a process has used."""
    with open("/proc/{}/stat".format(pid), encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
