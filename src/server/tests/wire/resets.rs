//! The resets of streams whose clients still send bodies that nobody reads.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{Protocol, connect};
use crate::fake::start;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longer than anything needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The types of frames (RFC 9113, 6), and the flags of some.
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 4;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;

struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short");
    let [_, length @ ..] = length.to_be_bytes();
    let head = [&length[..], &[kind, flags, 0, 0, 0, stream]].concat();
    [&head[..], payload].concat()
}

/// Returns a field whose name is in the static table (RFC 7541, 6.2.2).
fn field(name: u8, value: &str) -> Vec<u8> {
    let small = |number: usize| u8::try_from(number).expect("small");
    let mut field = match name.checked_sub(15) {
        None => vec![name],
        Some(rest) => vec![15, rest],
    };
    match value.len().checked_sub(127) {
        None => field.push(small(value.len())),
        Some(mut rest) => {
            field.push(127);
            while rest >= 128 {
                field.push(small(rest % 128 + 128));
                rest /= 128;
            }
            field.push(small(rest));
        }
    }
    field.extend_from_slice(value.as_bytes());
    field
}

/// Returns the head of a request whose body is far longer than the limit.
fn head(token: &str) -> Vec<u8> {
    let (post, https) = (0x83, 0x87);
    [
        vec![post, https],
        field(4, "/api/v1/namespaces/ns/pods"),
        field(1, "localhost"),
        field(23, &format!("Bearer {token}")),
        field(28, "1000000000"),
    ]
    .concat()
}

async fn send(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    stream.write_all(bytes).await.expect("sent");
    stream.flush().await.expect("flushed");
}

async fn next_frame(stream: &mut TlsStream<TcpStream>) -> Frame {
    let mut head = [0; 9];
    let read = stream.read_exact(&mut head).await;
    read.expect("the connection goes on");
    let [high, middle, low, kind, flags, ..] = head;
    let length = u32::from_be_bytes([0, high, middle, low]);
    let mut payload = vec![0; length as usize];
    let read = stream.read_exact(&mut payload).await;
    read.expect("a whole frame");
    Frame {
        kind,
        flags,
        payload,
    }
}

/// Returns the body of the only answer, once its stream has ended.
async fn whole_answer(stream: &mut TlsStream<TcpStream>) -> String {
    let mut body = Vec::new();
    loop {
        let frame = next_frame(stream).await;
        match frame.kind {
            DATA => body.extend_from_slice(&frame.payload),
            RST_STREAM => panic!("the stream is reset before its answer has ended"),
            _ => continue,
        }
        if frame.flags & END_STREAM != 0 {
            return String::from_utf8(body).expect("text");
        }
    }
}

/// Waits for the reset of the stream, or for the answer to a ping.
async fn reset_or_pong(stream: &mut TlsStream<TcpStream>) -> Frame {
    loop {
        let frame = next_frame(stream).await;
        if frame.kind == RST_STREAM || (frame.kind == PING && frame.flags & ACK != 0) {
            return frame;
        }
    }
}

/// A client that reads the reset together with the answer may show no answer, and one that reads an error in it may
/// not either.
#[tokio::test]
async fn a_stream_is_reset_without_an_error_a_moment_after_its_answer() {
    let server = start().await;
    for (token, code) in [("nonsense", 401), (server.pki.admin_token(), 413)] {
        let mut stream = connect(server.address, &server.pki, Protocol::Http2, None).await;
        let sent = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, END_HEADERS, 1, &head(token)),
            &frame(DATA, 0, 1, &[b' '; 16 << 10]),
        ]
        .concat();
        let exchange = async {
            send(&mut stream, &sent).await;
            let answer = whole_answer(&mut stream).await;
            assert!(answer.contains(&format!("\"code\":{code}")), "{answer}");
            send(&mut stream, &frame(PING, 0, 0, &[0; 8])).await;
            let first = reset_or_pong(&mut stream).await;
            assert_eq!(
                first.kind, PING,
                "the reset comes with the answer to {code}"
            );
            let reset = reset_or_pong(&mut stream).await;
            assert_eq!((reset.kind, reset.payload), (RST_STREAM, vec![0; 4]));
        };
        let in_time = tokio::time::timeout(PATIENCE, exchange).await;
        in_time.expect("an answer and a reset");
    }
}
