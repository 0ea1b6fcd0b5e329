//! The reader threads: reads may wait for the disk, and threads of the async runtime must not.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::error::ReadError;

/// Number of queued reads. Further callers wait until there is room in the queue.
const QUEUE_MAX: usize = 256;

type Read = Box<dyn FnOnce() + Send>;

/// A few threads with one bounded queue.
pub(crate) struct Readers {
    queue: Sender<Read>,
    room: Arc<Semaphore>,
}

impl Readers {
    /// Starts the threads. They end when this is dropped.
    pub(crate) fn start(threads: usize) -> std::io::Result<Self> {
        let (queue, reads) = channel::<Read>();
        let reads = Arc::new(Mutex::new(reads));
        for number in 0..threads.max(1) {
            let reads = Arc::clone(&reads);
            let thread = std::thread::Builder::new().name(format!("store-read-{number}"));
            // Not joined: the thread ends with the queue and owns nothing.
            thread.spawn(move || serve(&reads))?;
        }
        Ok(Self {
            queue,
            room: Arc::new(Semaphore::new(QUEUE_MAX)),
        })
    }

    /// Runs a read on one of the threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let room = Arc::clone(&self.room)
            .acquire_owned()
            .await
            .map_err(|_| ReadError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(move || {
            // A read is skipped if its caller has gone.
            if !reply.is_closed() {
                let result = read();
                drop(room);
                let _ = reply.send(result);
            }
        });
        self.queue.send(job).map_err(|_| ReadError::Closed)?;
        answer.await.map_err(|_| ReadError::Closed)?
    }
}

fn serve(reads: &Mutex<Receiver<Read>>) {
    loop {
        let next = reads.lock().recv();
        match next {
            Ok(read) => read(),
            Err(_) => return,
        }
    }
}
