//! The end of the process with a task that its planes cannot do without.

/// Aborts the process if the task that holds this panics. The field is the task's name in the log. Without its committer
/// a process could answer nobody truthfully, and without a prober or a follower its planes would wait for ever.
/// Acknowledged writes are durable, so none is lost.
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
