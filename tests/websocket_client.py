"""Watches over a WebSocket with the websocket-client package.

Run it with an address, a file of CAs, a token and the way to send the token (`header` or
`protocol`). It prints the sub-protocol in brackets, each message as it arrives, and at the end
`closed` with the code.
"""

import base64
import struct
import sys

import websocket

PREFIX = "base64url.bearer.authorization.k8s.io."


def main(url, authorities, token, way):
    headers, protocols = [], ["base64.binary.k8s.io"]
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
        assert opcode == websocket.ABNF.OPCODE_TEXT, opcode
        print(frame.data.decode(), end="", flush=True)


main(*sys.argv[1:])
