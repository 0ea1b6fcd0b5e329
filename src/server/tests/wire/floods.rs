//! Floods of frames that carry nothing of a request.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Client, Protocol, connect};
use crate::fake::{Running, start_with};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What the last ping carries, and its answer too.
const LAST: &[u8; 8] = b"the last";
/// Longer than anything needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The types of frames that the library does not limit, with what they carry and the stream they are of.
const KINDS: [(u8, &[u8], u8); 5] = [
    // Priorities: of a stream that is not open.
    (2, &[0, 0, 0, 0, 16], 3),
    // Settings that set nothing.
    (4, &[], 0),
    (6, &[0; 8], 0),
    // Window updates, of one byte.
    (8, &[0, 0, 0, 1], 0),
    // Frames of a type that nobody knows.
    (0xfa, &[1, 2, 3], 0),
];

fn frame((kind, payload, stream): (u8, &[u8], u8)) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("it is short");
    let head = [0, 0, length, kind, 0, 0, 0, 0, stream];
    [&head[..], payload].concat()
}

/// Sends a frame many times, and then a ping. Returns whether the server answers that, and does not close the
/// connection.
async fn is_answered(server: &Running, repeated: &[u8], count: usize) -> bool {
    let stream = connect(server.address, &server.pki, Protocol::Http2, None).await;
    let (mut from_server, mut to_server) = tokio::io::split(stream);
    let sent = [
        PREFACE,
        &frame((4, &[], 0)),
        &repeated.repeat(count),
        &frame((6, LAST, 0)),
    ]
    .concat();
    let sending = async {
        // The server may close before it has read everything.
        let _ = to_server.write_all(&sent).await;
        let _ = to_server.flush().await;
        std::future::pending::<bool>().await
    };
    let reading = async {
        let (mut read, mut buffer) = (Vec::new(), vec![0_u8; 64 << 10]);
        loop {
            let count = from_server.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return false;
            }
            let from = read.len().saturating_sub(LAST.len());
            read.extend_from_slice(&buffer[..count]);
            if read[from..].windows(LAST.len()).any(|bytes| bytes == LAST) {
                return true;
            }
        }
    };
    let done = async {
        tokio::select! {
            // First: the answer may be there before everything is sent.
            biased;
            is_answered = reading => is_answered,
            never = sending => never,
        }
    };
    let done = tokio::time::timeout(PATIENCE, done).await;
    done.expect("the server answers or closes the connection")
}

#[tokio::test]
async fn a_client_that_sends_many_frames_without_requests_loses_its_connection() {
    // Otherwise a stranger would lose it for another reason.
    let long = Duration::from_secs(600);
    let server = start_with(|config| config.limits.unproven_time_max = long).await;
    for kind in KINDS {
        let frame = frame(kind);
        assert!(is_answered(&server, &frame, 100).await, "{kind:?}");
        assert!(!is_answered(&server, &frame, 100_000).await, "{kind:?}");
    }
    until_counted(&server, KINDS.len()).await;
}

/// Waits until as many connections count as flooding.
async fn until_counted(server: &Running, connections: usize) {
    let mut client = Client::admin(server, Protocol::Http2).await;
    let shown = format!("\npolyplane_flooding_connections_total {connections}\n");
    let counted = async {
        while !client.get("/metrics").await.text().contains(&shown) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, counted).await;
    in_time.expect("each flood is counted once");
}

#[tokio::test]
async fn floods_that_the_library_ends_are_counted_too() {
    let server = start_with(|_| {}).await;
    // A head that does not end.
    let head = frame((1, &[0x82], 1));
    let flood = [head, frame((9, &[], 1)).repeat(1000)].concat();
    assert!(!is_answered(&server, &flood, 1).await);
    until_counted(&server, 1).await;
}
