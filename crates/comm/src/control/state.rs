//! What the server knows and decides, without sockets, threads or clocks: events go in with their time, actions come out.

use super::message::{Failure, FailureKind, FromRank, Hello, MAX_PAYLOAD, PROTOCOL, Progress, Refusal, ToRank};
use std::collections::BTreeMap;
use std::time::Duration;

/// A connection, numbered by the server.
pub(crate) type Connection = u64;

/// What the server does after an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send(Connection, ToRank, Vec<u8>),
    /// After what was sent.
    Close(Connection),
}

/// Deadlines of the control channel.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Between start and the joining of the last rank.
    pub join: Duration,
    /// Between notices of who is missing.
    pub notice: Duration,
    /// Between heartbeats.
    pub beat: Duration,
    /// Silence after which a rank is lost.
    pub peer: Duration,
}

impl Default for Deadlines {
    /// 300 s, 10 s, 1 s, 10 s.
    fn default() -> Deadlines {
        let [join, notice, beat, peer] = [300, 10, 1, 10].map(Duration::from_secs);
        Deadlines { join, notice, beat, peer }
    }
}

struct Peer {
    connection: Connection,
    host: String,
    heard: Duration,
    progress: Progress,
    left: bool,
    /// Nothing is expected of its connection any more.
    closed: bool,
}

struct Gather {
    to_all: bool,
    parts: BTreeMap<usize, Vec<u8>>,
}

pub(crate) struct State {
    /// What every rank must say, but for rank and host.
    expected: Hello,
    deadlines: Deadlines,
    peers: Vec<Option<Peer>>,
    gathers: BTreeMap<u64, Gather>,
    failure: Option<Failure>,
    last_notice: Duration,
    last_beat: Duration,
    actions: Vec<Action>,
}

impl State {
    /// Time begins at zero.
    pub(crate) fn new(expected: Hello, deadlines: Deadlines) -> State {
        State {
            peers: (0..expected.size).map(|_| None).collect(),
            expected,
            deadlines,
            gathers: BTreeMap::new(),
            failure: None,
            last_notice: Duration::ZERO,
            last_beat: Duration::ZERO,
            actions: Vec::new(),
        }
    }

    /// A message came.
    pub(crate) fn message(
        &mut self,
        from: Connection,
        message: FromRank,
        payload: Vec<u8>,
        now: Duration,
    ) -> Vec<Action> {
        match (self.rank_of(from), message) {
            (None, FromRank::Hello(hello)) => self.hello(from, hello, now),
            (None, _) => self.actions.push(Action::Close(from)),
            (Some(rank), message) => {
                let peer = self.peers[rank].as_mut().expect("it has joined");
                peer.heard = now;
                if let FromRank::Beat(progress) | FromRank::Stuck { progress, .. } = message {
                    peer.progress = progress;
                }
                self.act(rank, message, payload, now);
            }
        }
        std::mem::take(&mut self.actions)
    }

    /// A connection was closed, or what came over it was no message.
    pub(crate) fn gone(&mut self, connection: Connection, reason: &str, now: Duration) -> Vec<Action> {
        if let Some(rank) = self.rank_of(connection).filter(|&rank| !self.peer(rank).left) {
            self.lose(rank, reason, now);
            self.close(rank);
        }
        std::mem::take(&mut self.actions)
    }

    /// Time has passed; called several times a heartbeat.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        let is_silent = |peer: &Peer| !peer.left && !peer.closed && now - peer.heard > self.deadlines.peer;
        let silent: Vec<usize> = self.joined().filter(|&rank| is_silent(self.peer(rank))).collect();
        for rank in silent {
            self.lose(rank, "nothing was heard", now);
            // Nobody waits for its goodbye.
            self.actions.push(Action::Close(self.peer(rank).connection));
            self.close(rank);
        }
        let missing = self.missing();
        if !missing.is_empty() && self.failure.is_none() {
            let names: Vec<String> = missing.iter().map(usize::to_string).collect();
            if now > self.deadlines.join {
                let message = format!(
                    "of {} ranks, these did not join within {} s: {}",
                    self.expected.size,
                    self.deadlines.join.as_secs_f64(),
                    names.join(", ")
                );
                self.fail(FailureKind::Missing, missing, message);
            } else if now - self.last_notice >= self.deadlines.notice {
                self.last_notice = now;
                self.tell_all(&ToRank::Missing { ranks: missing });
            }
        }
        if now - self.last_beat >= self.deadlines.beat && self.failure.is_none() {
            self.last_beat = now;
            let progress = self.peers[0].as_ref().map(|peer| peer.progress).unwrap_or_default();
            self.tell_all(&ToRank::Beat(progress));
        }
        std::mem::take(&mut self.actions)
    }

    /// Whether every rank has said that it leaves. Of one that stands still in a collective nothing is awaited, and then of those neither
    /// that have closed their connections.
    pub(crate) fn all_left(&self) -> bool {
        let stuck = self.failure.iter().filter(|failure| failure.kind == FailureKind::Stuck);
        let stuck: Vec<usize> = stuck.flat_map(|failure| failure.ranks.clone()).collect();
        let is_gone =
            |rank: usize, peer: &Peer| peer.left || (!stuck.is_empty() && (peer.closed || stuck.contains(&rank)));
        self.peers.iter().enumerate().all(|(rank, peer)| peer.as_ref().is_some_and(|peer| is_gone(rank, peer)))
    }

    /// Whether the job has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Ranks that have not joined.
    fn missing(&self) -> Vec<usize> {
        (0..self.peers.len()).filter(|&rank| self.peers[rank].is_none()).collect()
    }

    fn hello(&mut self, from: Connection, hello: Hello, now: Duration) {
        if hello.cookie != self.expected.cookie {
            return self.refuse(from, Refusal::Cookie);
        }
        if let Some((field, expected, found)) = self.difference(&hello) {
            let Hello { rank, host, .. } = hello;
            let message =
                format!("rank {rank} (host {host}) differs from rank 0 in its {field}: {found}, not {expected}");
            self.refuse(from, Refusal::Differs { field: field.to_owned(), expected, found });
            return self.fail(FailureKind::Refused, vec![rank], message);
        }
        if let Some(first) = &self.peers[hello.rank] {
            let host = first.host.clone();
            return self.refuse(from, Refusal::Taken { host });
        }
        if let Some(failure) = &self.failure {
            self.actions.push(Action::Send(from, ToRank::Failed(failure.clone()), Vec::new()));
            return self.actions.push(Action::Close(from));
        }
        let peer = Peer {
            connection: from,
            host: hello.host,
            heard: now,
            progress: Progress::default(),
            left: false,
            closed: false,
        };
        self.peers[hello.rank] = Some(peer);
        if self.missing().is_empty() {
            let hosts = self.joined().map(|rank| self.peer(rank).host.clone()).collect();
            self.tell_all(&ToRank::Welcome { hosts });
        }
    }

    /// The first field in which a rank differs: its name, what rank 0 has, and what the rank has.
    fn difference(&self, hello: &Hello) -> Option<(&'static str, String, String)> {
        let (ours, theirs) = (&self.expected.identity, &hello.identity);
        let pairs = [
            ("protocol version", PROTOCOL.to_string(), hello.protocol.to_string()),
            ("number of ranks", self.expected.size.to_string(), hello.size.to_string()),
            ("program", ours.program.clone(), theirs.program.clone()),
            ("recipe", ours.recipe.clone(), theirs.recipe.clone()),
            ("data", ours.data.clone(), theirs.data.clone()),
            ("plan", ours.plan.clone(), theirs.plan.clone()),
        ];
        let last = self.expected.size - 1;
        let rank = (hello.rank > last).then(|| ("rank", format!("at most {last}"), hello.rank.to_string()));
        pairs.into_iter().find(|(_, ours, theirs)| ours != theirs).or(rank)
    }

    fn act(&mut self, rank: usize, message: FromRank, payload: Vec<u8>, now: Duration) {
        match message {
            FromRank::Beat(_) => {}
            FromRank::Hello(_) => self.lose(rank, "it joined twice over one connection", now),
            FromRank::Failed { kind, message } => {
                let message = format!("{} failed: {message}", self.name(rank));
                self.fail(kind, vec![rank], message);
            }
            FromRank::Stop(stop) => self.tell_all(&ToRank::Stop(stop)),
            FromRank::Stuck { progress, seconds } => {
                let behind = self.joined().filter(|&other| !self.peer(other).progress.has_reached(&progress)).collect();
                self.stuck(rank, &progress.to_string(), behind, seconds);
            }
            FromRank::Unanswered { number, seconds } => {
                let Some(gather) = self.gathers.get(&number) else { return };
                let behind = self.joined().filter(|other| !gather.parts.contains_key(other)).collect();
                let what = format!("{}, for what ranks tell each other", self.peer(rank).progress);
                self.stuck(rank, &what, behind, seconds);
            }
            FromRank::Give { number, to_all } => self.give(rank, number, to_all, payload),
            FromRank::Leave => self.peers[rank].as_mut().expect("it has joined").left = true,
        }
    }

    fn give(&mut self, rank: usize, number: u64, to_all: bool, payload: Vec<u8>) {
        let left: Vec<usize> = self.joined().filter(|&other| self.peer(other).left).collect();
        if let Some(&first) = left.first() {
            let message = format!("{} has ended while {} waits for it", self.name(first), self.name(rank));
            return self.fail(FailureKind::Lost, left, message);
        }
        let gather = self.gathers.entry(number).or_insert_with(|| Gather { to_all, parts: BTreeMap::new() });
        if gather.to_all != to_all || gather.parts.insert(rank, payload).is_some() {
            let message = format!("{} and others do not gather the same: exchange {number}", self.name(rank));
            return self.fail(FailureKind::Error, vec![rank], message);
        }
        if gather.parts.len() < self.peers.len() {
            return;
        }
        let parts = self.gathers.remove(&number).expect("it is complete").parts;
        let lengths: Vec<usize> = parts.values().map(Vec::len).collect();
        let total: usize = lengths.iter().sum();
        if total > MAX_PAYLOAD as usize {
            let message = format!("exchange {number} gathers {total} bytes; at most {MAX_PAYLOAD} are allowed");
            return self.fail(FailureKind::Error, (0..self.peers.len()).collect(), message);
        }
        let all = parts.into_values().flatten().collect::<Vec<u8>>();
        for rank in 0..self.peers.len() {
            let (lengths, payload) =
                if to_all || rank == 0 { (lengths.clone(), all.clone()) } else { (Vec::new(), Vec::new()) };
            let connection = self.peer(rank).connection;
            self.actions.push(Action::Send(connection, ToRank::Gathered { number, lengths }, payload));
        }
    }

    /// A rank has waited for so long for `what`, which those `behind` have not begun.
    fn stuck(&mut self, rank: usize, what: &str, behind: Vec<usize>, seconds: u64) {
        let names: Vec<String> =
            behind.iter().map(|&other| format!("{} {}", self.name(other), self.peer(other).progress)).collect();
        let who = match names.is_empty() {
            true => "all ranks have begun it".to_owned(),
            false => format!("not begun by {}", names.join(", ")),
        };
        let message = format!("{} has waited {seconds} s {what}: {who}", self.name(rank));
        self.fail(FailureKind::Stuck, behind, message);
    }

    fn close(&mut self, rank: usize) {
        self.peers[rank].as_mut().expect("it has joined").closed = true;
    }

    fn lose(&mut self, rank: usize, reason: &str, now: Duration) {
        let peer = self.peer(rank);
        let seen = (now - peer.heard).as_secs_f64();
        let message = format!("lost {} {}: {reason}; last seen {seen:.1} s ago", self.name(rank), peer.progress);
        self.fail(FailureKind::Lost, vec![rank], message);
    }

    /// Tells everyone, once.
    fn fail(&mut self, kind: FailureKind, ranks: Vec<usize>, message: String) {
        if self.failure.is_none() {
            let failure = Failure { kind, ranks, message };
            self.tell_all(&ToRank::Failed(failure.clone()));
            self.failure = Some(failure);
        }
    }

    fn refuse(&mut self, connection: Connection, refusal: Refusal) {
        self.actions.push(Action::Send(connection, ToRank::Refused(refusal), Vec::new()));
        self.actions.push(Action::Close(connection));
    }

    fn tell_all(&mut self, message: &ToRank) {
        for peer in self.peers.iter().flatten().filter(|peer| !peer.left) {
            self.actions.push(Action::Send(peer.connection, message.clone(), Vec::new()));
        }
    }

    fn joined(&self) -> impl Iterator<Item = usize> {
        (0..self.peers.len()).filter(|&rank| self.peers[rank].is_some())
    }

    fn rank_of(&self, connection: Connection) -> Option<usize> {
        self.joined().find(|&rank| self.peer(rank).connection == connection)
    }

    fn peer(&self, rank: usize) -> &Peer {
        self.peers[rank].as_ref().expect("it has joined")
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} (host {})", self.peer(rank).host)
    }
}

#[cfg(test)]
mod tests;
