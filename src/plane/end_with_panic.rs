//! What happens if a task panics that all planes of the process rest on.

/// Aborts the process if the task that holds it panics. A committer that is gone could answer nobody truthfully, and
/// what a prober or a follower was to do would never be done. Another replica takes the planes, and acknowledged
/// writes are durable, so none is lost. Names the task.
pub struct EndWithPanic(pub &'static str);

impl Drop for EndWithPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.0, "a task panicked; the process ends");
            #[expect(clippy::disallowed_methods, reason = "nothing can be drained any more")]
            std::process::abort();
        }
    }
}
