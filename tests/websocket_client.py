"""Watches over a WebSocket with the websocket-client package.

Run it with an address, a file of CAs, a token, the way to send the token (`header` or `protocol`)
and the form of the events (`json` or `protobuf`). It prints the sub-protocol in brackets, each
message as it arrives, and at the end `closed` with the code. Of an event in protobuf it prints type
and data of the ConfigMap as JSON.
"""

import base64
import json
import struct
import sys

import websocket

PREFIX = "base64url.bearer.authorization.k8s.io."


PROTOBUF = "application/vnd.kubernetes.protobuf"


def varint(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def fields(data, number):
    """Returns the fields of a message that have bytes and this number."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        length, at = varint(data, at)
        if key & 7 == 2:
            if key >> 3 == number:
                found.append(data[at : at + length])
            at += length
    return found


def shown(event):
    """Returns the JSON of what matters of an event in protobuf."""
    raw = fields(fields(event, 2)[0], 1)[0]
    assert raw.startswith(b"k8s\0"), raw
    entries = fields(fields(raw[4:], 2)[0], 2)
    data = {fields(e, 1)[0].decode(): fields(e, 2)[0].decode() for e in entries}
    return json.dumps({"type": fields(event, 1)[0].decode(), "object": {"data": data}})


def main(url, authorities, token, way, form):
    headers, protocols = [], ["base64.binary.k8s.io"]
    if form == "protobuf":
        headers.append(f"Accept: {PROTOBUF};stream=watch")
    if way == "header":
        headers.append("Authorization: Bearer " + token)
    else:
        encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        protocols.insert(0, PREFIX + encoded)
    socket = websocket.create_connection(
        url, header=headers, subprotocols=protocols, sslopt={"ca_certs": authorities}
    )
    print(f"[{socket.subprotocol}]", flush=True)
    # The server ignores messages from clients.
    socket.send("hello")
    socket.ping("are you there?")
    while True:
        opcode, frame = socket.recv_data_frame()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            print("closed", struct.unpack("!H", frame.data[:2])[0], flush=True)
            return
        if form == "protobuf":
            assert opcode == websocket.ABNF.OPCODE_BINARY, opcode
            print(shown(frame.data), flush=True)
        else:
            assert opcode == websocket.ABNF.OPCODE_TEXT, opcode
            print(frame.data.decode(), end="", flush=True)


main(*sys.argv[1:])
