//! The parts that a plane's queue is sent in.

use tokio::sync::oneshot;

use super::*;
use crate::state::overlay::Derive;
use crate::state::summary::Summarizer;
use crate::state::{Context, Root};
use crate::testing::template_values;
use crate::write::sequencer::{
    Budget, NextPart, QueuedChange, QueuedOperation, QueuedWrite, Sequencer,
};

/// Such a write is refused before it is queued. The committer would offer room for ever to a plane that
/// never takes it.
#[test]
fn a_queued_write_that_repeats_a_key_is_a_part_of_its_own() {
    let context = Context {
        indexes: Arc::from([]),
        derive: Derive::default(),
        summarizer: Summarizer::default(),
        interner: Arc::default(),
    };
    let mut sequencer = Sequencer::new(Root::of_layers(template_values(), &context));
    let operation = |value: &str| {
        let object = object("a", "x", value);
        QueuedOperation::new(QueuedChange::Put {
            entry: Entry::in_flight(configmap("a"), Stamp::sequenced(1), object),
            packed: None,
            nonce: None,
        })
    };
    for _ in 0..2 {
        let (reply, _answer) = oneshot::channel();
        let write = QueuedWrite::new(vec![operation("1"), operation("2")], 10, reply);
        let accepted = sequencer.accept(write, &[], &context, Intake::Open);
        assert!(accepted.is_ok(), "{accepted:?}");
    }
    let budget = Budget {
        writes: 10,
        ops: 100,
        indexes: 100,
        bytes: 1000,
        alone_bytes: 100,
        fresh: true,
        share: None,
    };
    let taken = sequencer.take(budget, || SendPermit::Granted(Vec::new()));
    assert!(
        matches!(&taken, NextPart::Part(writes, _) if writes.len() == 1),
        "{taken:?}"
    );
}
