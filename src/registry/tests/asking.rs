//! Stages that call others: they delay no other write, send only durable state, and make each call
//! once.

use super::*;
use crate::plan::{Attributes, CallOuts, Interrupted};
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_apimachinery::json;
use polyplane_plane::Claim;

/// The time that a reply takes.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// A plug-in that makes a call for each write of the user `slow`, which returns the object's data,
/// and refuses objects whose data are then `bad`.
#[derive(Debug, Default)]
pub(super) struct Slow {
    asked: Mutex<Vec<String>>,
    prepared: Mutex<usize>,
}

impl Slow {
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

#[async_trait]
impl Admission for Slow {
    fn name(&self) -> &'static str {
        "Slow"
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        if what.call.request.user.name != "slow" {
            return Ok(Vec::new());
        }
        *self.prepared.lock() += 1;
        let shown = object.or(what.old).expect("one of them is there");
        let (data, made) = (&shown["data"], &shown["metadata"]["creationTimestamp"]);
        let question = Value::Array(vec![data.clone(), made.clone()]);
        let answer = call_outs.ask(json::to_vec(&question).into())??;
        if answer == "no" {
            return Err(ApiError::bad_request("refused").into());
        }
        Ok(Vec::new())
    }

    async fn call(&self, question: &Bytes) -> Result<Bytes, ApiError> {
        let text = String::from_utf8(question.to_vec()).expect("JSON");
        let refused = text.contains("bad");
        self.asked.lock().push(text);
        sleep(ANSWER).await;
        Ok(if refused { "no" } else { "yes" }.into())
    }
}

async fn open() -> (Site, Arc<Slow>) {
    let slow = Arc::<Slow>::default();
    let site = Site::open(vec![Arc::clone(&slow) as _]).await;
    site.make("x", "0").await;
    site.make("y", "0").await;
    (site, slow)
}

fn patch(of: &str, member: &str) -> Ask {
    Ask::patch(of, &format!(r#"{{"data":{{"{member}":"1"}}}}"#))
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_an_answer_holds_up_no_other_and_lands_on_the_newest_state() {
    let (site, slow) = open().await;
    let writer = site.spawn(patch("y", "slow").slowly());
    settle_down().await;
    let first = site.send(patch("y", "first"));
    first.await.expect("nobody is in its way");
    sleep(ANSWER).await;
    assert_eq!(slow.asked().len(), 2, "the object is another now");
    // Other writes fail and wait in the key's queue, while this write waits in the queue of writes
    // that make calls.
    let begin = Instant::now();
    let refused = site.unsettle(patch("x", "refused")).await;
    let many: Vec<_> = (0..8)
        .map(|at| site.spawn(patch("y", &format!("w{at}"))))
        .collect();
    for write in many {
        let written = write.await.expect("no panic");
        written.expect("nobody is in its way");
    }
    refused
        .await
        .expect("no panic")
        .expect_err("the store is full");
    assert!(begin.elapsed() < UNSETTLED + Duration::from_secs(1));
    assert!(!writer.is_finished());
    writer.await.expect("no panic").expect("it is allowed");
    let data = site.config_map("y");
    for member in ["slow", "first", "w0", "w7", "k"] {
        assert!(data["data"].get(member).is_some(), "{member} is lost");
    }
    assert_eq!(slow.asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_prepared_again_with_equal_questions_asks_once() {
    let (site, slow) = open().await;
    let writer = site.spawn(patch("y", "slow").slowly());
    sleep(ANSWER - Duration::from_secs(1)).await;
    let refused = site.unsettle(patch("x", "refused")).await;
    writer.await.expect("no panic").expect("it is allowed");
    refused
        .await
        .expect("no panic")
        .expect_err("the store is full");
    assert!(*slow.prepared.lock() > 2, "it was never withdrawn");
    assert_eq!(slow.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_object_asks_once_although_time_passes_and_its_name_is_drawn() {
    let (site, slow) = open().await;
    let body = r#"{"metadata":{"generateName":"n-"},"data":{"k":"1"}}"#;
    let made = site.send(Ask::create("configmaps", body).slowly()).await;
    let made = made.expect("it is allowed");
    assert!(made.str_at(&["metadata", "name"]).starts_with("n-"));
    assert_eq!(slow.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn writers_of_one_object_ask_twice_each_at_most() {
    const WRITERS: usize = 64;
    let (site, slow) = open().await;
    let many: Vec<_> = (0..WRITERS)
        .map(|at| site.spawn(patch("y", &format!("w{at}")).slowly()))
        .collect();
    for write in many {
        write.await.expect("no panic").expect("it is allowed");
    }
    let data = site.config_map("y");
    assert_eq!(
        data["data"].as_object().map(|data| data.len()),
        Some(WRITERS + 1)
    );
    assert_eq!(slow.asked().len(), 2 * WRITERS - 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_wait_and_nothing_is_stored() {
    let (site, slow) = open().await;
    let begin = Instant::now();
    let patience = Duration::from_secs(3);
    let late = site
        .send(patch("y", "slow").slowly().within(patience))
        .await;
    assert_eq!(late.expect_err("it is late").code, 504);
    assert_eq!(begin.elapsed(), patience);
    sleep(2 * ANSWER).await;
    assert_eq!(slow.asked().len(), 1);
    assert!(site.config_map("y")["data"].get("slow").is_none());
    // The key's queues are empty afterwards.
    site.send(patch("y", "next"))
        .await
        .expect("the key is free");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_about_a_state_that_does_not_come_to_be() {
    let (site, slow) = open().await;
    let bad = Ask::patch("y", r#"{"data":{"k":"bad"}}"#);
    let refused = site.unsettle(bad).await;
    let writer = site.send(patch("y", "slow").slowly()).await;
    writer.expect("what is refused was never there");
    refused
        .await
        .expect("no panic")
        .expect_err("the store is full");
    let asked = slow.asked();
    assert!(!asked.is_empty());
    assert!(
        asked.iter().all(|asked| !asked.contains("bad")),
        "{asked:?}"
    );
    // Once the object is durable, the call is made about it.
    let bad = Ask::patch("y", r#"{"data":{"k":"bad"}}"#);
    site.send(bad).await.expect("the store has room again");
    let writer = site.send(patch("y", "more").slowly()).await;
    assert_eq!(writer.expect_err("it is refused").message, "refused");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_asks_too_and_waits_for_the_answer() {
    let (site, slow) = open().await;
    let delete = Ask::new(Verb::Delete, "configmaps", Some("y")).slowly();
    site.send(delete).await.expect("it is allowed");
    assert_eq!(slow.asked().len(), 1);
    assert!(site.stored("configmaps", "y").is_none());
    let bad = Ask::patch("x", r#"{"data":{"k":"bad"}}"#);
    site.send(bad).await.expect("not asked");
    let delete = Ask::new(Verb::Delete, "configmaps", Some("x")).slowly();
    site.send(delete).await.expect_err("it is refused");
    assert!(site.stored("configmaps", "x").is_some());
}

/// Seats that are counted.
#[derive(Debug)]
pub(super) struct Counted {
    /// Number of requests that may wait.
    room: usize,
    waiting: Mutex<usize>,
    pub(super) left: Mutex<usize>,
}

impl Counted {
    pub(super) fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            room,
            waiting: Mutex::new(0),
            left: Mutex::new(0),
        })
    }
}

impl Seats for Counted {
    fn leave(&self) -> Result<(), ApiError> {
        let mut waiting = self.waiting.lock();
        if *waiting == self.room {
            return Err(ApiError::too_many_requests("too many", 1));
        }
        *waiting += 1;
        *self.left.lock() += 1;
        Ok(())
    }

    fn return_to(&self) {
        *self.waiting.lock() -= 1;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_no_seat_while_it_waits_and_its_parts_have_one_together() {
    let (site, slow) = open().await;
    let seats = Counted::new(1);
    let mut many = Ask::new(Verb::DeleteCollection, "configmaps", None).slowly();
    many.seats = Some(Arc::clone(&seats) as _);
    let many = site.spawn(many);
    sleep(ANSWER / 2).await;
    assert_eq!(slow.asked().len(), 2);
    assert_eq!(*seats.waiting.lock(), 1, "a request has one seat");
    let mut other = patch("x", "other").slowly();
    other.seats = Some(Arc::clone(&seats) as _);
    let other = site.send(other).await.expect_err("too many wait");
    assert_eq!(other.code, 429);
    assert_eq!(slow.asked().len(), 2, "it was asked although too many wait");
    many.await.expect("no panic").expect("both are deleted");
    assert_eq!((*seats.waiting.lock(), *seats.left.lock()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_while_its_write_waits_leaves_nothing_behind() {
    let (site, _) = open().await;
    let seats = Counted::new(1);
    let mut write = patch("y", "slow").slowly();
    write.seats = Some(Arc::clone(&seats) as _);
    let gone = site.spawn(write);
    sleep(ANSWER / 2).await;
    gone.abort();
    assert!(gone.await.is_err());
    assert_eq!(*seats.waiting.lock(), 0);
    sleep(2 * ANSWER).await;
    assert!(site.config_map("y")["data"].get("slow").is_none());
}
