//! Nodes as network namespaces of this machine: each has an interface to a switch, and a host name.

use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::MpiLauncher;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

pub(crate) type Result<T> = std::result::Result<T, String>;

/// Longest frame that a port gives: a segment that an interface has not cut yet, with its headers.
const FRAME: usize = 1 << 17;

/// Nodes on one switch, which end with all their processes when this is dropped.
pub(crate) struct Nodes {
    names: Vec<String>,
    switch: String,
    folder: PathBuf,
    /// Raised to end the wire that carries frames instead of the switch.
    wire: Option<Arc<AtomicBool>>,
}

/// Megabits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u64);

/// What is wrong with a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The link of a node is down.
    Down(usize),
    /// What a node sends is lost.
    Mute(usize),
    /// What is sent to a node is lost.
    Deaf(usize),
    /// All links carry 10 Mbit/s.
    Narrow,
    /// All frames arrive 50 ms late.
    Late,
    /// One frame of a hundred is lost.
    Lossy,
}

impl Nodes {
    /// `count` nodes; files of theirs are kept in `folder`.
    ///
    /// # Errors
    /// This user may not, or this system cannot.
    pub(crate) fn new(count: usize, folder: &Path) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("bessemer{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let nodes = Self {
            names: (0..count).map(|node| format!("{prefix}n{node}")).collect(),
            switch: format!("{prefix}s"),
            folder: folder.to_owned(),
            wire: None,
        };
        ip(&format!("netns add {}", nodes.switch))?;
        let on_switch = |what: &str| ip(&format!("-n {} {what}", nodes.switch));
        on_switch("link add hub type bridge")?;
        on_switch("link set hub up")?;
        for (node, name) in nodes.names.iter().enumerate() {
            ip(&format!("netns add {name}"))?;
            on_switch(&format!("link add port{node} type veth peer name eth0 netns {name}"))?;
            on_switch(&format!("link set port{node} master hub up"))?;
            ip(&format!("-n {name} addr add 10.213.77.{}/24 dev eth0", node + 1))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        nodes.wait_for_links()?;
        Ok(nodes)
    }

    /// A command that starts a program on a rank of each node, from the first one, with messages over TCP between the nodes alone.
    ///
    /// # Errors
    /// The files that the launcher needs cannot be written.
    pub(crate) fn launch(&self, launcher: &MpiLauncher, program: &OsStr, arguments: &[OsString]) -> Result<Command> {
        let mut command = self.on_first(&launcher.command(self.names.len(), program, arguments));
        command.stdin(launcher.stdin());
        let (remote_start, hosts) = (self.remote_start()?, self.folder.join("hosts"));
        let separator = if launcher.family == Family::OpenMpi { " slots=" } else { ":" };
        let lines: String = self.names.iter().map(|name| format!("{name}{separator}1\n")).collect();
        fs::write(&hosts, lines).map_err(|error| format!("{}: {error}", hosts.display()))?;
        match launcher.family {
            Family::OpenMpi => command
                .env("OMPI_MCA_plm_rsh_agent", remote_start)
                .env("OMPI_MCA_orte_default_hostfile", hosts)
                .env("OMPI_MCA_btl", "tcp,self")
                .env("OMPI_MCA_btl_tcp_if_include", "eth0")
                .env("OMPI_MCA_oob_tcp_if_include", "eth0"),
            Family::Mpich | Family::StandardAbi => command
                .env("HYDRA_LAUNCHER", "ssh")
                .env("HYDRA_LAUNCHER_EXEC", remote_start)
                .env("HYDRA_HOST_FILE", hosts)
                .env("HYDRA_IFACE", "eth0")
                .env("UCX_TLS", "tcp,self"),
        };
        Ok(command)
    }

    /// A command as it is started on the first node.
    fn on_first(&self, command: &Command) -> Command {
        let name = &self.names[0];
        let mut within = Command::new("ip");
        within.args(["netns", "exec", name, "unshare", "--uts", "sh", "-c", r#"hostname "$0"; exec "$@""#, name]);
        within.arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        within.envs(set);
        within
    }

    /// A program that starts a command on another node, as `ssh NODE COMMAND` does.
    fn remote_start(&self) -> Result<PathBuf> {
        let path = self.folder.join("remote-start");
        let script = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nnode=$1\nshift\n\
                      exec ip netns exec \"$node\" unshare --uts sh -c \"hostname $node; $*\"\n";
        fs::write(&path, script).map_err(|error| format!("{}: {error}", path.display()))?;
        run("chmod", ["+x".as_ref(), path.as_os_str()])?;
        Ok(path)
    }

    /// Processes on a node.
    fn processes(&self, node: &str) -> Vec<i32> {
        let listed = Command::new("ip").args(["netns", "pids", node]).output();
        let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Ends all processes of all nodes.
    pub(crate) fn clear(&self) {
        let all = || self.names.iter().flat_map(|node| self.processes(node)).collect::<Vec<i32>>();
        let begun = Instant::now();
        while !all().is_empty() && begun.elapsed() < Duration::from_secs(10) {
            for process in all() {
                signal(process, "KILL");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Brings trouble to the network.
    ///
    /// # Errors
    /// This system cannot.
    pub(crate) fn trouble(&mut self, trouble: Trouble) -> Result<()> {
        let shape = |namespace: &str, device: &str, what: &str| {
            run("tc", format!("-n {namespace} qdisc replace dev {device} root {what}").split(' '))
        };
        match trouble {
            Trouble::Down(node) => ip(&format!("-n {} link set port{node} down", self.switch)),
            Trouble::Mute(node) => shape(&self.names[node], "eth0", "blackhole"),
            Trouble::Deaf(node) => shape(&self.switch, &format!("port{node}"), "blackhole"),
            Trouble::Narrow => self.limit(Rate(10)),
            Trouble::Late => self.replace_switch(Duration::from_millis(50), None),
            Trouble::Lossy => self.replace_switch(Duration::ZERO, Some(100)),
        }
    }

    /// Lets each node send so fast, and no faster.
    ///
    /// # Errors
    /// This system cannot.
    pub(crate) fn limit(&self, rate: Rate) -> Result<()> {
        // What may be sent at once is that of a millisecond, or a segment that an interface has not cut yet.
        let burst = (rate.0 * 1000 / 8).max(64 << 10);
        let limit = |name: &String| {
            let shape = format!("tbf rate {}mbit burst {burst} latency 400ms", rate.0);
            run("tc", format!("-n {name} qdisc replace dev eth0 root {shape}").split(' '))
        };
        self.names.iter().try_for_each(limit)
    }

    /// Ends all trouble.
    pub(crate) fn heal(&mut self) -> Result<()> {
        if let Some(wire) = self.wire.take() {
            wire.store(true, Ordering::Release);
        }
        for (node, name) in self.names.iter().enumerate() {
            // Where there is none, there is nothing to remove.
            let _ = run("tc", format!("-n {name} qdisc del dev eth0 root").split(' '));
            let _ = run("tc", format!("-n {} qdisc del dev port{node} root", self.switch).split(' '));
            let _ = ip(&format!("-n {} link del tap{node}", self.switch));
            ip(&format!("-n {} link set port{node} master hub up", self.switch))?;
        }
        self.wait_for_links()
    }

    /// Waits until nodes know that their links are up, which the kernel may tell them a second late: UCX uses only links that are up.
    fn wait_for_links(&self) -> Result<()> {
        let is_up = |name: &String| {
            let shown = Command::new("ip").args(["-n", name, "link", "show", "eth0"]).output();
            shown.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("state UP"))
        };
        let begun = Instant::now();
        while !self.names.iter().all(is_up) {
            if begun.elapsed() > Duration::from_secs(10) {
                return Err("the links between nodes do not come up".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Carries frames between the nodes through this process, which does not need a kernel that can delay and lose them.
    fn replace_switch(&mut self, delay: Duration, one_lost_of: Option<u64>) -> Result<()> {
        let mut ports = Vec::new();
        for node in 0..self.names.len() {
            ip(&format!("-n {} link set port{node} nomaster", self.switch))?;
            let tap = format!("-n {} link add link port{node} name tap{node} type macvtap mode passthru", self.switch);
            ip(&tap)?;
            ip(&format!("-n {} link set tap{node} up", self.switch))?;
            let listed = format!("netns exec {} sh -c", self.switch);
            let mut command = Command::new("ip");
            command.args(listed.split(' ')).arg(format!("cat /sys/class/net/tap{node}/tap*/dev"));
            let number = command.output().map_err(|error| error.to_string())?.stdout;
            let number = String::from_utf8_lossy(&number).trim().replace(':', " ");
            let path = self.folder.join(format!("tap{node}"));
            let _ = fs::remove_file(&path);
            run("mknod", format!("{} c {number}", path.display()).split(' '))?;
            let port = OpenOptions::new().read(true).write(true).open(&path);
            ports.push(port.map_err(|error| format!("{}: {error}", path.display()))?);
        }
        let wire = Arc::new(AtomicBool::new(false));
        self.wire = Some(Arc::clone(&wire));
        carry(ports, delay, one_lost_of, &wire).map_err(|error| error.to_string())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.clear();
        if let Some(wire) = &self.wire {
            wire.store(true, Ordering::Release);
        }
        for name in self.names.iter().chain([&self.switch]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A frame, and when it arrives.
type Sent = (Instant, Arc<Vec<u8>>);

/// Gives each frame of a port to all others, as a hub does, until `end` is raised.
fn carry(ports: Vec<File>, delay: Duration, one_lost_of: Option<u64>, end: &Arc<AtomicBool>) -> io::Result<()> {
    let mut queues: Vec<Sender<Sent>> = Vec::new();
    for port in &ports {
        let (queue, received) = channel();
        queues.push(queue);
        let port = port.try_clone()?;
        std::thread::spawn(move || arrive(port, &received));
    }
    for (from, mut port) in ports.into_iter().enumerate() {
        let others: Vec<Sender<Sent>> =
            queues.iter().enumerate().filter(|(to, _)| *to != from).map(|(_, queue)| queue.clone()).collect();
        let end = Arc::clone(end);
        std::thread::spawn(move || {
            let mut frame = vec![0; FRAME];
            let mut count = 0_u64;
            // Removing the port ends the read.
            while let Ok(length @ 1..) = port.read(&mut frame) {
                count += 1;
                if end.load(Ordering::Acquire) {
                    return;
                }
                if one_lost_of.is_none_or(|of| !count.is_multiple_of(of)) {
                    let frame = Arc::new(frame[..length].to_vec());
                    let due = Instant::now() + delay;
                    others.iter().for_each(|queue| drop(queue.send((due, Arc::clone(&frame)))));
                }
            }
        });
    }
    Ok(())
}

fn arrive(mut port: File, queue: &Receiver<Sent>) {
    while let Ok((due, frame)) = queue.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A frame for a port that is full, or gone, is lost.
        let _ = port.write(&frame);
    }
}

/// Sends a signal to a process, which may have ended.
pub(crate) fn signal(process: i32, name: &str) {
    let _ = Command::new("kill").args(["-s", name, &process.to_string()]).stderr(Stdio::null()).status();
}

fn ip(arguments: &str) -> Result<()> {
    run("ip", arguments.split(' '))
}

/// # Errors
/// What the program says.
fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", said.trim())) }
}
