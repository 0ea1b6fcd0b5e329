//! Runs a program under strace and reads every system call on files from its log.
//!
//! The recorder sits below the process: it sees what the kernel was asked for, whichever library
//! asked. It knows files and descriptors, and nothing of the program.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What changes files or makes them durable, and what is needed to follow descriptors. Of `mmap`
/// and `io_uring` only the presence matters: writes through them would not be seen.
const CALLS: &str = "open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl,\
    read,readv,lseek,write,writev,pwrite64,pwritev,pwritev2,copy_file_range,sendfile,splice,\
    truncate,ftruncate,fallocate,fsync,fdatasync,sync,syncfs,sync_file_range,fadvise64,msync,mmap,\
    rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,\
    mknod,mknodat,ioctl,io_uring_setup,chdir,fchdir";
/// Bytes of one write that the log keeps: more than any program here writes in one call.
const BYTES_MAX: &str = "67108864";

/// One system call.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    /// `None` if the process died in it.
    pub(crate) result: Option<i64>,
    /// Where it began and ended in the order of all that the recorder saw.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Call {
    /// An argument that is a string.
    pub(crate) fn bytes(&self, index: usize) -> Vec<u8> {
        let text = &self.arguments[index];
        assert!(
            text.starts_with('"') && text.ends_with('"'),
            "{} is cut off or no string: {text:.100}",
            self.name
        );
        unescape(&text[1..text.len() - 1])
    }

    /// An argument that is a path.
    pub(crate) fn path(&self, index: usize) -> PathBuf {
        PathBuf::from(String::from_utf8(self.bytes(index)).expect("paths here are text"))
    }

    /// An argument that is a number.
    pub(crate) fn number(&self, index: usize) -> i64 {
        let text = &self.arguments[index];
        text.parse()
            .unwrap_or_else(|_| panic!("{}: no number: {text:.100}", self.name))
    }

    /// An argument that is a descriptor; `None` stands for the working folder.
    pub(crate) fn descriptor(&self, index: usize) -> Option<i64> {
        let text = &self.arguments[index];
        (text != "AT_FDCWD").then(|| self.number(index))
    }
}

/// What is done to a process when one of its threads makes the call with this name for the n-th time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) call: &'static str,
    pub(crate) nth: u32,
    pub(crate) kind: FaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The process is killed before the call is executed.
    Killed,
    /// The call, which is a sync, returns `EIO`.
    Fails,
    /// The call, which is a sync, fails while the process is killed, which never learns of it.
    FailsUnseen,
}

impl FaultKind {
    fn kills(self) -> bool {
        match self {
            Self::Killed | Self::FailsUnseen => true,
            Self::Fails => false,
        }
    }

    /// Whether a sync fails.
    pub(crate) fn fails(self) -> bool {
        match self {
            Self::Killed => false,
            Self::Fails | Self::FailsUnseen => true,
        }
    }
}

/// Finds strace, once per process.
fn strace() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
        let output = Command::new(script).arg("strace").output();
        let output = output.expect("tests/programs runs");
        let line = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().last().unwrap_or_default().to_owned()
        };
        assert!(output.status.success(), "{}", line(&output.stderr));
        let found = line(&output.stdout);
        PathBuf::from(found.strip_prefix("strace ").expect("a name and a path"))
    })
}

/// Runs a program to its end and returns its calls in the order in which they began. `order` is
/// the last number given out so far.
pub(crate) fn record(
    log: &Path,
    program: &Path,
    variables: &[(&str, String)],
    fault: Option<Fault>,
    order: &mut u64,
) -> Vec<Call> {
    let mut command = Command::new(strace());
    command.args(["-f", "-xx", "-s", BYTES_MAX, "-e", "signal=none", "-o"]);
    command.arg(log).arg("-e").arg(format!("trace={CALLS}"));
    if let Some(Fault { call, nth, kind }) = fault {
        let what = if kind.kills() {
            "signal=SIGKILL"
        } else {
            "error=EIO"
        };
        let inject = format!("inject={call}:{what}:when={nth}");
        command.arg("-e").arg(inject);
    }
    command.arg(program);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.output().expect("strace runs");
    assert!(
        fault.is_some_and(|fault| fault.kind.kills()) || output.status.success(),
        "the recorded program failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    read_log(log, order)
}

fn read_log(log: &Path, order: &mut u64) -> Vec<Call> {
    let lines = BufReader::new(std::fs::File::open(log).expect("strace wrote a log")).lines();
    let mut calls: Vec<Call> = Vec::new();
    // By thread, what is to be completed by its `resumed` line: the text and the place in `calls`.
    let mut begun: HashMap<String, (String, usize)> = HashMap::new();
    for line in lines {
        let line = line.expect("the log is text");
        *order += 1;
        let (thread, rest) = line.split_once(' ').expect("a thread and a call");
        let rest = rest.trim_start();
        if rest.starts_with("+++") || rest.starts_with("---") {
            continue;
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (text, at) = begun.remove(thread).expect("it was begun");
            let (_, resumed) = resumed.split_once(" resumed>").expect("resumed");
            let whole = parse(&format!("{text}{resumed}"), calls[at].start, *order);
            calls[at] = whole;
        } else if let Some(text) = rest.strip_suffix(" <unfinished ...>") {
            begun.insert(thread.to_owned(), (text.to_owned(), calls.len()));
            calls.push(parse(&format!("{text}) = ?"), *order, u64::MAX));
        } else if let Some(text) = rest.strip_suffix(" <detached ...>") {
            // The process was killed in the call that the recorder was writing about.
            calls.push(parse(&format!("{text}) = ?"), *order, u64::MAX));
        } else {
            calls.push(parse(rest, *order, *order));
        }
    }
    calls
}

/// Reads `name(argument, …) = result …`.
fn parse(text: &str, start: u64, end: u64) -> Call {
    let (name, rest) = text.split_once('(').expect("a name");
    let (arguments, after) = split(rest);
    let result = after.split_once('=').map(|(_, result)| result);
    // Of a thread that ends in a call, the recorder may show an error without a name: what it reads is gone.
    let result = result.filter(|result| !result.contains("(errno "));
    let result = result.and_then(|result| result.trim().split(' ').next());
    let result = result.and_then(|word| match word.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    });
    Call {
        name: name.to_owned(),
        arguments,
        result,
        start,
        end: if result.is_some() { end } else { u64::MAX },
    }
}

/// Splits what follows the opening bracket of a call into its arguments and the rest.
fn split(text: &str) -> (Vec<String>, &str) {
    let bytes = text.as_bytes();
    let mut arguments = Vec::new();
    let (mut at, mut from, mut depth) = (0, 0, 0_u32);
    while at < bytes.len() {
        match bytes[at] {
            // Inside, every byte is escaped, so the next quote ends it.
            b'"' => at += 1 + text[at + 1..].find('"').expect("a string ends"),
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => break,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                arguments.push(text[from..at].trim().to_owned());
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    arguments.push(text[from..at.min(text.len())].trim().to_owned());
    (arguments, text.get(at + 1..).unwrap_or_default())
}

fn unescape(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        _ => byte - b'a' + 10,
    };
    let bytes = text.as_bytes().chunks_exact(4);
    assert!(bytes.remainder().is_empty(), "every byte is escaped");
    bytes.map(|x| digit(x[2]) << 4 | digit(x[3])).collect()
}
