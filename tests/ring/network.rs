//! Separate machines for processes, simulated by network namespaces around a hub.
//!
//! This module owns namespaces, addresses and routes, and removes all of them when it is dropped. A
//! partition is a rule of the hub that drops packets from one address to another without notice, as
//! a network does. It needs root. It does not know which programs run in the namespaces.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Priority of the hub's rules: low enough for the kernel to apply them before its routes.
const PRIORITY: &str = "100";

/// One simulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The network namespace.
    pub namespace: String,
    /// The machine's only address beside loopback.
    pub address: Ipv4Addr,
}

/// A hub with machines around it; the test itself is one of them.
pub struct Network {
    hub: String,
    own_link: String,
    subnet: u8,
    nodes: Vec<Node>,
    cut: Vec<(Ipv4Addr, Ipv4Addr)>,
}

fn run(program: &str, words: &[&str]) -> Result<()> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn ip(words: &[&str]) -> Result<()> {
    run("ip", words)
}

fn within(namespace: &str, words: &[&str]) -> Result<()> {
    ip(&[&["-n", namespace], words].concat())
}

impl Network {
    /// Makes a hub with `nodes` machines. Without the right to do so it prints one line and returns
    /// `None`; with `CI` set that is an error, so that no test is skipped unnoticed.
    ///
    /// # Errors
    /// Returns an error if the network cannot be made.
    pub fn make(nodes: usize) -> Result<Option<Self>> {
        match Self::try_make(nodes) {
            Ok(network) => Ok(Some(network)),
            Err(error) if std::env::var_os("CI").is_some() => {
                Err(error.context("no network namespaces, and CI is set"))
            }
            Err(error) => {
                println!("passed over: network namespaces need root: {error:#}");
                Ok(None)
            }
        }
    }

    fn try_make(count: usize) -> Result<Self> {
        let id = std::process::id();
        let subnet = u8::try_from(64 + id % 128).context("below 192")?;
        // Built first, so that an early return drops it and removes the half-made network.
        let mut network = Self {
            hub: format!("pp{id}-hub"),
            own_link: format!("pp{id}"),
            subnet,
            nodes: Vec::new(),
            cut: Vec::new(),
        };
        let hub = network.hub.clone();
        ip(&["netns", "add", &hub])?;
        within(&hub, &["link", "set", "lo", "up"])?;
        ip(&[
            "netns",
            "exec",
            &hub,
            "sysctl",
            "-qw",
            "net.ipv4.ip_forward=1",
        ])?;
        let own_link = network.own_link.clone();
        network.link(&own_link, None, 0)?;
        let all = format!("10.{subnet}.0.0/16");
        let gateway = network.gateway(0).to_string();
        ip(&["route", "add", &all, "via", &gateway])?;
        for place in 0..count {
            let namespace = format!("pp{id}-{place}");
            ip(&["netns", "add", &namespace])?;
            let at = u8::try_from(place + 1).context("too many nodes")?;
            network.nodes.push(Node {
                namespace: namespace.clone(),
                address: network.address(at),
            });
            within(&namespace, &["link", "set", "lo", "up"])?;
            network.link("eth0", Some(&namespace), at)?;
            let gateway = network.gateway(at).to_string();
            within(&namespace, &["route", "add", "default", "via", &gateway])?;
        }
        Ok(network)
    }

    /// Links the hub and a namespace, with an address at both ends.
    fn link(&self, name: &str, namespace: Option<&str>, place: u8) -> Result<()> {
        let hub_end = format!("to{place}");
        let mut words = vec!["link", "add", &hub_end, "netns", &self.hub];
        words.extend(["type", "veth", "peer", "name", name]);
        words.extend(namespace.map(|name| ["netns", name]).into_iter().flatten());
        ip(&words)?;
        let address = format!("{}/30", self.gateway(place));
        within(&self.hub, &["addr", "add", &address, "dev", &hub_end])?;
        within(&self.hub, &["link", "set", &hub_end, "up"])?;
        let address = format!("{}/30", self.address(place));
        let place = |words: &[&str]| match namespace {
            Some(namespace) => within(namespace, words),
            None => ip(words),
        };
        place(&["addr", "add", &address, "dev", name])?;
        place(&["link", "set", name, "up"])
    }

    fn gateway(&self, place: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, place, 1)
    }

    fn address(&self, place: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, place, 2)
    }

    /// Returns the address at which the machines reach the test's own process.
    pub fn own(&self) -> Ipv4Addr {
        self.address(0)
    }

    /// Returns the machines.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Drops all packets between these two addresses, in both directions.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub fn cut(&mut self, one: Ipv4Addr, other: Ipv4Addr) -> Result<()> {
        for (from, to) in [(one, other), (other, one)] {
            self.rule("add", from, to)?;
            self.cut.push((from, to));
        }
        Ok(())
    }

    /// Removes all partitions.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub fn heal(&mut self) -> Result<()> {
        while let Some((from, to)) = self.cut.pop() {
            self.rule("del", from, to)?;
        }
        Ok(())
    }

    fn rule(&self, verb: &str, from: Ipv4Addr, to: Ipv4Addr) -> Result<()> {
        let (from, to) = (from.to_string(), to.to_string());
        let mut words = vec!["rule", verb, "pref", PRIORITY];
        words.extend(["from", &from, "to", &to, "blackhole"]);
        within(&self.hub, &words)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Deleting a namespace also deletes its links and their other ends.
        for node in &self.nodes {
            drop(ip(&["netns", "del", &node.namespace]));
        }
        drop(ip(&["link", "del", &self.own_link]));
        drop(ip(&["netns", "del", &self.hub]));
    }
}

/// Returns a node of the network; `None` for the test's own machine.
///
/// # Errors
/// Returns an error if the network has fewer nodes.
pub fn node(network: Option<&Network>, place: usize) -> Result<Option<Node>> {
    let Some(network) = network else {
        return Ok(None);
    };
    match network.nodes.get(place) {
        Some(node) => Ok(Some(node.clone())),
        None => bail!("the network has no node {place}"),
    }
}
