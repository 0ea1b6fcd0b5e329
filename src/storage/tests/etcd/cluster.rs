//! A real etcd cluster on loopback, in a folder of its own, for one test.
//!
//! Its processes are stopped by their ids when it is dropped. If etcd cannot be had the test fails
//! with the one line of `tests/programs`.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polyplane_storage::{EtcdOptions, EtcdStore};
use rustix::process::{Pid, Signal, kill_process};

/// Finds or builds a program, once per process.
fn program(name: &'static str, found: &'static OnceLock<PathBuf>) -> &'static Path {
    found.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
        let output = Command::new(script).arg(name).output();
        let output = output.expect("tests/programs runs");
        let line = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().last().unwrap_or_default().to_owned()
        };
        assert!(output.status.success(), "{}", line(&output.stderr));
        let told = line(&output.stdout);
        let path = told.strip_prefix(&format!("{name} "));
        PathBuf::from(path.expect("a name and a path"))
    })
}

pub(crate) fn etcd() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    program("etcd", &FOUND)
}

pub(crate) fn etcdctl() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    program("etcdctl", &FOUND)
}

pub(crate) struct Member {
    name: String,
    arguments: Vec<String>,
    log: PathBuf,
    pub(crate) client_port: u16,
    process: Option<Child>,
}

impl Member {
    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.expect("a log");
        let process = Command::new(etcd())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("etcd starts"));
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        let id = Pid::from_child(process);
        kill_process(id, signal).expect("signalled");
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    /// Removed with the cluster.
    _folder: tempfile::TempDir,
}

/// Ports that nobody listens on.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("bound").port();
    listeners.iter().map(port).collect()
}

impl Cluster {
    /// Starts so many members with further arguments for each; `scheme` is that of clients.
    pub(crate) fn start(size: usize, scheme: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = free_ports(2 * size);
        let (client_ports, peer_ports) = ports.split_at(size);
        let peers: Vec<String> = (0..size)
            .map(|n| format!("m{n}=http://127.0.0.1:{}", peer_ports[n]))
            .collect();
        let members = (0..size).map(|n| {
            let name = format!("m{n}");
            let client = format!("{scheme}://127.0.0.1:{}", client_ports[n]);
            let peer = format!("http://127.0.0.1:{}", peer_ports[n]);
            let data = folder.path().join(&name);
            let arguments = [
                ("name", name.clone()),
                ("data-dir", data.display().to_string()),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", peers.join(",")),
                // One process of many on a busy machine; terms of leases follow from it, too.
                ("heartbeat-interval", "60".to_owned()),
                ("election-timeout", "600".to_owned()),
                ("log-level", "warn".to_owned()),
            ];
            let mut arguments: Vec<String> = arguments
                .into_iter()
                .map(|(flag, value)| format!("--{flag}={value}"))
                .collect();
            arguments.extend(more.iter().map(|flag| (*flag).to_owned()));
            let mut member = Member {
                log: folder.path().join(format!("{name}.log")),
                name,
                arguments,
                client_port: client_ports[n],
                process: None,
            };
            member.start();
            member
        });
        let members = members.collect();
        Self {
            members,
            _folder: folder,
        }
    }

    pub(crate) fn one() -> Self {
        Self::start(1, "http", &[])
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: self.endpoints(),
            open_timeout: Duration::from_secs(60),
            ..EtcdOptions::default()
        }
    }

    pub(crate) async fn connect(&self) -> Arc<EtcdStore> {
        self.connect_with(self.options()).await
    }

    pub(crate) async fn connect_with(&self, options: EtcdOptions) -> Arc<EtcdStore> {
        match EtcdStore::connect(options).await {
            Ok(store) => store,
            Err(error) => panic!("{error}\n{}", self.logs()),
        }
    }

    /// The ends of the members' logs.
    pub(crate) fn logs(&self) -> String {
        let log = |member: &Member| {
            let text = std::fs::read_to_string(&member.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(10);
            format!("{}:\n{}\n", member.name, lines[from..].join("\n"))
        };
        self.members.iter().map(log).collect()
    }

    /// Runs etcdctl against the first member and gives what it printed.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let output = Command::new(etcdctl())
            .arg(format!("--endpoints={}", self.members[0].endpoint()))
            .args(arguments)
            .output()
            .expect("etcdctl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "etcdctl {arguments:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// The member that leads.
    pub(crate) fn leader(&self) -> usize {
        let wanted = |n: &usize| {
            let output = Command::new(etcdctl())
                .arg(format!("--endpoints={}", self.members[*n].endpoint()))
                .args(["endpoint", "status", "--write-out=fields"])
                .output()
                .expect("etcdctl runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let field = |name: &str| {
                let mut lines = text.lines();
                lines.find_map(|line| {
                    line.strip_prefix(&format!("\"{name}\" : "))
                        .map(str::to_owned)
                })
            };
            let member = field("MemberID");
            member.is_some() && member == field("Leader")
        };
        until(Duration::from_secs(30), || {
            (0..self.members.len()).find(&wanted)
        })
    }
}

/// Asks until there is an answer.
pub(crate) fn until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}");
        #[expect(clippy::disallowed_methods, reason = "outside of any runtime")]
        std::thread::sleep(Duration::from_millis(20));
    }
}
