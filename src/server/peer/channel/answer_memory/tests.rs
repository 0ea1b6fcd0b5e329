//! Tests of the memory of answers, on a channel that is joined to one of a host.

use std::time::Duration;

use futures_util::FutureExt as _;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::time::sleep;

use super::*;
use crate::peer::channel::frame::CHUNK_BYTES;
use crate::peer::channel::stream::{Broken, PeerStream, WINDOW_BYTES};
use crate::peer::tests::{Pair, ask_for, pair_of, until};

/// Returns the memory of answers in a budget of which they may have `bytes`, and a connection whose answers count in it.
fn budgeted(bytes: usize) -> (Arc<Memory>, Arc<AnswerMemory>, Pair) {
    let memory = Memory::with_limits(|_| bytes / 8 * 9);
    let answers = Arc::<AnswerMemory>::default();
    answers.count_in(Arc::clone(&memory));
    assert_eq!(answers.bytes_max(), bytes);
    let pair = pair_of(100_000, Channel::of_answers(&answers));
    (memory, answers, pair)
}

#[tokio::test]
async fn unread_forwarded_answers_stay_within_the_budget_and_end_for_their_own_plane_only() {
    let most = 8 << 20;
    let (memory, answers, pair) = budgeted(most);
    let [greedy, modest]: [Arc<PlaneMeter>; 2] = std::array::from_fn(|_| Arc::default());
    let read = ask_for(&pair.asking, &modest, "/endless").await;
    let mut read = read.expect("an answer").into_body();
    let mut unread = Vec::new();
    for _ in 0..60 {
        let answer = ask_for(&pair.asking, &greedy, "/endless").await;
        unread.extend(answer.map(Response::into_body));
        let frame = read.frame().await.expect("more").expect("it goes on");
        assert!(frame.is_data());
        assert!(answers.bytes() <= most + CHUNK_BYTES, "{}", answers.bytes());
        assert_eq!(memory.used(Share::Answers), answers.bytes());
    }
    // Those that are left fill their windows.
    until(|| pair.asking.open_streams() <= most / WINDOW_BYTES + 1).await;
    assert!(greedy.forwarded_bytes() > most / 2, "it is used");
    let whole = ask_for(&pair.asking, &modest, "/1000000").await;
    let whole = whole.expect("an answer").into_body().collect().await;
    assert_eq!(whole.expect("whole").to_bytes().len(), 1_000_000);
    let frame = read.frame().await.expect("more");
    assert!(frame.is_ok(), "what is read goes on");
    let next = unread.iter_mut().map(|body| body.frame().now_or_never());
    let ended = next.filter(|next| matches!(next, Some(Some(Err(Broken::Unread)))));
    assert!(ended.count() >= 20);
    drop((read, unread));
    until(|| memory.used(Share::Answers) == 0).await;
}

#[tokio::test]
async fn what_a_client_leaves_in_its_connection_counts_and_its_answer_is_cut() {
    let most = 8 << 20;
    let (memory, answers, pair) = budgeted(most);
    let plane = Arc::<PlaneMeter>::default();
    let (mut clients, mut cut) = (Vec::new(), 0);
    'clients: for _ in 0..20 {
        let Ok(answer) = ask_for(&pair.asking, &plane, "/endless").await else {
            continue;
        };
        let (mut body, sending) = (answer.into_body(), Arc::<Sending>::default());
        body.set_sending(&sending);
        let (mut pieces, mut kept) = (Vec::new(), 0);
        while kept < 1 << 20 {
            let Some(Ok(frame)) = body.frame().await else {
                continue 'clients;
            };
            let data = frame.into_data().expect("data");
            kept += data.len();
            pieces.push(body.kept().hand_over(data));
            // A connection drops what it keeps of an answer that is cut.
            let before = clients.len();
            clients.retain(|(_, sending, _): &(PeerStream, Arc<Sending>, Vec<Bytes>)| {
                !sending.is_cut()
            });
            cut += before - clients.len();
            assert!(answers.bytes() <= most + 2 * WINDOW_BYTES);
        }
        clients.push((body, sending, pieces));
    }
    assert!(cut > 0 && !clients.is_empty(), "{cut}");
    assert_eq!(answers.bytes(), plane.forwarded_bytes());
    drop(clients);
    until(|| memory.used(Share::Answers) == 0).await;
}

#[tokio::test]
async fn while_memory_is_short_an_answer_that_is_read_holds_little_and_arrives_whole() {
    let (_memory, answers, pair) = budgeted(2 << 20);
    let [slow, quick]: [Arc<PlaneMeter>; 2] = std::array::from_fn(|_| Arc::default());
    let mut unread = Vec::new();
    for _ in 0..5 {
        let answer = ask_for(&pair.asking, &slow, "/endless").await;
        unread.push(answer.expect("an answer"));
    }
    until(|| answers.bytes() == 5 * WINDOW_BYTES).await;
    let answer = ask_for(&pair.asking, &quick, "/1000000").await;
    let mut body = answer.expect("an answer").into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.expect("whole").into_data().expect("data").len();
        // Time for all that the credit allows to arrive.
        sleep(Duration::from_millis(1)).await;
        let held = quick.forwarded_bytes();
        assert!(
            read <= WINDOW_BYTES || held <= 16 * 1024,
            "{held} at {read}"
        );
    }
    assert_eq!(read, 1_000_000);
    assert_eq!(answers.bytes(), 5 * WINDOW_BYTES, "nothing else has ended");
}
