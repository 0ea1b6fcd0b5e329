//! Clients that speak plain HTTP to a port of TLS. They are told so before the handshake, as by upstream.

use std::io;

use tokio::net::TcpStream;

/// The answer of upstream's library. Clients know its text.
const ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// The beginnings of requests that are answered, as long as the head of a record of TLS. Upstream's list.
const BEGINNINGS: [[u8; 5]; 5] = [*b"GET /", *b"HEAD ", *b"POST ", *b"PUT /", *b"OPTIO"];
/// Bytes that are taken from the socket, unread: the head of a usual request. What is left there makes the end of
/// the connection a reset, which the client may see instead of the answer; more would be work for a stranger.
const TAKEN_BYTES: usize = 1024;

/// Answers a client that begins with a request of plain HTTP. Waits for nothing on a new socket that has sent
/// something.
///
/// # Errors
/// Returns an error if there was such a client, or the socket is broken.
pub(crate) async fn refuse(socket: &TcpStream) -> io::Result<()> {
    let mut beginning = [0; 5];
    let read = socket.peek(&mut beginning).await?;
    if read < beginning.len() || !BEGINNINGS.contains(&beginning) {
        return Ok(());
    }
    socket.writable().await?;
    // One try of each: a client that makes them fail gets no answer.
    let _ = socket.try_read(&mut [0; TAKEN_BYTES]);
    let _ = socket.try_write(ANSWER);
    let why = "the client sent an HTTP request to a port of TLS";
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}
