//! The server's decisions in virtual time: random schedules of joins, losses and delays against a model, and each message once.

use super::super::message::{Identity, Phase};
use super::*;
use bessemer_philox::{Stream, halves};

const DEADLINES: Deadlines = Deadlines {
    join: Duration::from_millis(3000),
    notice: Duration::from_millis(500),
    beat: Duration::from_millis(100),
    peer: Duration::from_millis(1000),
};
const TICK: u64 = 50;

fn hello(rank: usize, size: usize) -> Hello {
    let identity = Identity { program: "1".into(), recipe: "r".into(), data: "d".into(), plan: "p".into() };
    Hello { protocol: PROTOCOL, cookie: "job".into(), rank, size, host: format!("host{rank}"), identity }
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A state whose ranks have joined, on the connections of their numbers.
fn joined(size: usize) -> State {
    let mut state = State::new(hello(0, size), DEADLINES);
    for rank in 0..size {
        state.message(rank as u64, FromRank::Hello(hello(rank, size)), Vec::new(), ms(0));
    }
    state
}

/// What goes wrong with a rank, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NeverJoins,
    Differs,
    Closes(u64),
    Silent(u64),
    Errs(u64),
}

#[derive(Clone, Debug)]
enum Event {
    Message(Connection, FromRank, Vec<u8>),
    Gone(Connection),
    Tick,
}

/// Events by time, and what the model expects of them.
struct Schedule {
    events: BTreeMap<u64, Event>,
    size: usize,
    joins: Vec<Option<u64>>,
    gives: Vec<Option<u64>>,
    /// When nothing has been heard of a rank for too long.
    silences: Vec<Option<u64>>,
    /// Time, kind and ranks of the first failure.
    failure: Option<(u64, FailureKind, Vec<usize>)>,
    /// Connections of strangers, what each must be told, and the rank it claims.
    strangers: BTreeMap<Connection, (&'static str, usize)>,
}

impl Schedule {
    /// Adds an event at the first free time from `time` on that is no tick; returns that time.
    fn add(&mut self, mut time: u64, event: Event) -> u64 {
        while self.events.contains_key(&time) || time.is_multiple_of(TICK) {
            time += 1;
        }
        self.events.insert(time, event);
        time
    }
}

const END: u64 = 7000;

fn schedule(seed: u64) -> Schedule {
    let mut random = Stream::new(halves(seed), [0, 0, 0]);
    let size = 1 + random.below(5) as usize;
    let mut schedule = Schedule {
        events: (0..=END / TICK).map(|tick| (tick * TICK, Event::Tick)).collect(),
        size,
        joins: vec![None; size],
        gives: vec![None; size],
        silences: vec![None; size],
        failure: None,
        strangers: BTreeMap::new(),
    };
    let mut failures = Vec::new();
    let mut missing = Vec::new();
    for rank in 0..size {
        let connection = rank as u64;
        let join = u64::from(random.below(2900));
        let at = join + 1 + u64::from(random.below(2900));
        let fault = match random.below(24) {
            0 => Fault::NeverJoins,
            1 => Fault::Differs,
            2 => Fault::Closes(at),
            3 => Fault::Silent(at),
            4 => Fault::Errs(at),
            _ => Fault::None,
        };
        if fault == Fault::NeverJoins {
            missing.push(rank);
            continue;
        }
        let mut first = hello(rank, size);
        if fault == Fault::Differs && rank > 0 {
            first.identity.plan = "other".into();
        }
        let joins = schedule.add(join, Event::Message(connection, FromRank::Hello(first), Vec::new()));
        if fault == Fault::Differs && rank > 0 {
            failures.push((joins, FailureKind::Refused, vec![rank]));
            missing.push(rank);
            continue;
        }
        schedule.joins[rank] = Some(joins);
        let end = match fault {
            Fault::Closes(at) | Fault::Silent(at) | Fault::Errs(at) => at.max(joins + 1),
            _ => END,
        };
        // Heartbeats come late, but for a lost rank not so late that it is lost.
        let mut heard = joins;
        let mut next = joins + 100;
        while next < end {
            let beat = FromRank::Beat(Progress { step: next, ..Progress::default() });
            heard = schedule.add(next, Event::Message(connection, beat, Vec::new()));
            next += 50 + u64::from(random.below(850));
        }
        // All gather once everyone can have joined; only those that live by then do.
        if end > 3100 {
            let give = FromRank::Give { number: 0, to_all: true };
            let time = schedule
                .add(3010 + u64::from(random.below(80)), Event::Message(connection, give, vec![rank as u8; rank]));
            schedule.gives[rank] = Some(time);
            heard = heard.max(time);
        }
        match fault {
            Fault::Closes(_) => {
                let at = schedule.add(end.max(heard), Event::Gone(connection));
                failures.push((at, FailureKind::Lost, vec![rank]));
            }
            Fault::Errs(_) => {
                let message = FromRank::Failed { kind: FailureKind::Error, message: "boom".into() };
                let at = schedule.add(end.max(heard), Event::Message(connection, message, Vec::new()));
                failures.push((at, FailureKind::Error, vec![rank]));
                schedule.silences[rank] = Some((at + 1000 + 1).next_multiple_of(TICK));
            }
            Fault::Silent(_) => {
                let tick = (heard + 1000 + 1).next_multiple_of(TICK);
                failures.push((tick, FailureKind::Lost, vec![rank]));
                schedule.silences[rank] = Some(tick);
            }
            _ => {}
        }
    }
    if !missing.is_empty() {
        failures.push((3050, FailureKind::Missing, missing));
    }
    // Two ranks that fall silent may be found by the same tick: the lower one is named, and silence comes before a missed deadline.
    failures.sort_by_key(|(time, kind, ranks)| (*time, *kind == FailureKind::Missing, ranks.clone()));
    schedule.failure = failures.into_iter().next();
    for number in 0..random.below(4) {
        let connection = 100 + u64::from(number);
        let time = u64::from(random.below(END as u32));
        let rank = random.below(size as u32) as usize;
        let (message, told) = match random.below(3) {
            0 => (FromRank::Hello(Hello { cookie: "other".into(), ..hello(rank, size) }), "cookie"),
            1 => (FromRank::Leave, "closed"),
            _ if schedule.joins[rank].is_some_and(|join| join < time) => (FromRank::Hello(hello(rank, size)), "taken"),
            _ => (FromRank::Beat(Progress::default()), "closed"),
        };
        schedule.add(time, Event::Message(connection, message, Vec::new()));
        schedule.add(time + 2, Event::Gone(connection));
        schedule.strangers.insert(connection, (told, rank));
    }
    schedule
}

fn check(seed: u64) {
    let schedule = schedule(seed);
    let mut state = State::new(hello(0, schedule.size), DEADLINES);
    let mut told: BTreeMap<Connection, Vec<(u64, ToRank, Vec<u8>)>> = BTreeMap::new();
    let mut closed: BTreeMap<Connection, u64> = BTreeMap::new();
    for (&time, event) in &schedule.events {
        let actions = match event.clone() {
            Event::Message(from, message, payload) => state.message(from, message, payload, ms(time)),
            Event::Gone(connection) => state.gone(connection, "closed", ms(time)),
            Event::Tick => state.tick(ms(time)),
        };
        for action in actions {
            match action {
                Action::Send(to, message, payload) => told.entry(to).or_default().push((time, message, payload)),
                Action::Close(connection) => drop(closed.entry(connection).or_insert(time)),
            }
        }
    }
    let failure = schedule.failure.clone();
    let failed_at = failure.as_ref().map_or(u64::MAX, |failure| failure.0);
    let all_joined =
        schedule.joins.iter().copied().collect::<Option<Vec<u64>>>().map(|joins| joins.into_iter().max().unwrap());
    let all_given =
        schedule.gives.iter().copied().collect::<Option<Vec<u64>>>().map(|gives| gives.into_iter().max().unwrap());
    let parts: Vec<u8> = (0..schedule.size).flat_map(|rank| vec![rank as u8; rank]).collect();
    for rank in 0..schedule.size {
        let Some(join) = schedule.joins[rank] else { continue };
        let messages = told.remove(&(rank as u64)).unwrap_or_default();
        let of =
            |want: fn(&ToRank) -> bool| messages.iter().filter(|(_, message, _)| want(message)).collect::<Vec<_>>();
        let failures = of(|message| matches!(message, ToRank::Failed(_)));
        let context = format!("seed {seed}, rank {rank}, {failure:?}, {messages:?}");
        match &failure {
            None => assert!(failures.is_empty(), "{context}"),
            Some((at, kind, ranks)) => {
                let [(time, ToRank::Failed(told), _)] = failures[..] else { panic!("{context}") };
                assert_eq!((*time, &told.kind, &told.ranks), (join.max(*at), kind, ranks), "{context}");
                assert!(ranks.iter().all(|rank| told.message.contains(&rank.to_string())), "{context}");
                assert!(
                    messages.iter().all(|(time, _, _)| *time <= join.max(*at)),
                    "told more after the end: {context}"
                );
            }
        }
        let welcomes = of(|message| matches!(message, ToRank::Welcome { .. }));
        match all_joined.filter(|&time| time < failed_at) {
            None => assert!(welcomes.is_empty(), "{context}"),
            Some(time) => {
                let hosts = (0..schedule.size).map(|rank| format!("host{rank}")).collect();
                assert_eq!(welcomes, [&(time, ToRank::Welcome { hosts }, Vec::new())], "{context}");
            }
        }
        let gathered = of(|message| matches!(message, ToRank::Gathered { .. }));
        match all_given.filter(|&time| time < failed_at) {
            None => assert!(gathered.is_empty(), "{context}"),
            Some(time) => {
                let lengths = (0..schedule.size).collect();
                assert_eq!(gathered, [&(time, ToRank::Gathered { number: 0, lengths }, parts.clone())], "{context}");
            }
        }
        let missing = of(|message| matches!(message, ToRank::Missing { .. }));
        assert!(
            missing.iter().all(|(time, _, _)| time.is_multiple_of(500) && *time < all_joined.unwrap_or(u64::MAX)),
            "{context}"
        );
        let beats = of(|message| matches!(message, ToRank::Beat(_))).len() as u64;
        let alive = failed_at.min(END + 1).saturating_sub(join);
        assert!(beats.abs_diff(alive / 100) <= 1, "{beats} beats in {alive} ms: {context}");
        // A rank that comes after the end is told and closed, one that falls silent is closed.
        let silence = schedule.silences[rank].filter(|&time| time <= END);
        let ends = if join > failed_at { Some(join) } else { silence };
        assert_eq!(closed.get(&(rank as u64)).copied(), ends, "{context}");
    }
    for (connection, (expected, rank)) in &schedule.strangers {
        let messages: Vec<ToRank> =
            told.remove(connection).unwrap_or_default().into_iter().map(|told| told.1).collect();
        let right = match (*expected, &messages[..]) {
            ("cookie", [ToRank::Refused(Refusal::Cookie)]) | ("closed", []) => true,
            // The rank came after the end of the job, and so did the stranger.
            ("taken", [ToRank::Failed(_)]) => schedule.joins[*rank].is_some_and(|join| join > failed_at),
            ("taken", [ToRank::Refused(Refusal::Taken { host })]) => host.starts_with("host"),
            _ => false,
        };
        assert!(right && closed.contains_key(connection), "seed {seed}: stranger {expected}: {messages:?}");
    }
}

#[test]
fn random_schedules_end_as_the_model_says() {
    let mut kinds = BTreeMap::new();
    for seed in 0..3000 {
        check(seed);
        let kind = schedule(seed).failure.map_or("none".to_owned(), |failure| format!("{:?}", failure.1));
        *kinds.entry(kind).or_insert(0) += 1;
    }
    // Every kind of end is met often enough to be tested.
    assert!(kinds.len() == 5 && kinds.values().all(|&count| count > 100), "{kinds:?}");
}

fn only_failure(actions: Vec<Action>) -> Failure {
    let failures = actions.into_iter().filter_map(|action| match action {
        Action::Send(_, ToRank::Failed(failure), _) => Some(failure),
        _ => None,
    });
    let failures: Vec<Failure> = failures.collect();
    assert!(!failures.is_empty() && failures.iter().all(|failure| *failure == failures[0]));
    failures[0].clone()
}

#[test]
fn messages_say_who_where_and_when() {
    let progress = Progress { step: 120, phase: Phase::Compute, micro_batch: 0, begun: 4, done: 3, collectives: 9 };
    let mut state = joined(4);
    state.message(3, FromRank::Beat(progress), Vec::new(), ms(800));
    let failure = only_failure(state.gone(3, "the connection was closed", ms(11_040)));
    assert_eq!(
        failure.message,
        "lost rank 3 (host host3) at step 120, in all-reduce 4 of 9: the connection was closed; last seen 10.2 s ago"
    );

    let mut state = joined(4);
    let failed = FromRank::Failed { kind: FailureKind::Usage, message: "layer4.conv1: NaN".into() };
    let failure = only_failure(state.message(2, failed, Vec::new(), ms(5)));
    assert_eq!((failure.kind, failure.ranks), (FailureKind::Usage, vec![2]));
    assert_eq!(failure.message, "rank 2 (host host2) failed: layer4.conv1: NaN");

    let mut state = State::new(hello(0, 4), DEADLINES);
    for rank in [0, 2] {
        state.message(rank, FromRank::Hello(hello(rank as usize, 4)), Vec::new(), ms(2500));
    }
    let failure = only_failure(state.tick(ms(3001)));
    assert_eq!((failure.kind, failure.ranks), (FailureKind::Missing, vec![1, 3]));
    assert_eq!(failure.message, "of 4 ranks, these did not join within 3 s: 1, 3");
}

#[test]
fn a_stuck_collective_names_those_who_have_not_begun_it() {
    let at = |step, begun, done| Progress { step, phase: Phase::Save, micro_batch: 0, begun, done, collectives: 9 };
    let mut state = joined(4);
    for (rank, progress) in [(0, at(120, 4, 3)), (1, at(120, 3, 3)), (2, at(120, 6, 3)), (3, at(119, 9, 9))] {
        state.message(rank, FromRank::Beat(progress), Vec::new(), ms(100));
    }
    let stuck = FromRank::Stuck { progress: at(120, 5, 3), seconds: 600 };
    let failure = only_failure(state.message(0, stuck, Vec::new(), ms(200)));
    assert_eq!((failure.kind, failure.ranks), (FailureKind::Stuck, vec![1, 3]));
    assert_eq!(
        failure.message,
        "rank 0 (host host0) has waited 600 s at step 120, in all-reduce 4 of 9: not begun by rank 1 (host host1) at step 120, \
         saving, rank 3 (host host3) at step 119, saving"
    );
    state.message(0, FromRank::Leave, Vec::new(), ms(300));
    assert!(!state.all_left(), "rank 2 is to learn of it");
    state.message(2, FromRank::Leave, Vec::new(), ms(300));
    assert!(state.all_left(), "nobody waits for ranks that stand still");
}

#[test]
fn an_unanswered_exchange_names_those_who_have_not_given() {
    let mut state = joined(3);
    let at = Progress { step: 8, phase: Phase::Evaluate, ..Progress::default() };
    for rank in 0..3 {
        state.message(rank, FromRank::Beat(at), Vec::new(), ms(100));
    }
    for rank in [0, 2] {
        assert_eq!(state.message(rank, FromRank::Give { number: 0, to_all: true }, Vec::new(), ms(100)), []);
    }
    let unanswered = FromRank::Unanswered { number: 0, seconds: 2 };
    let failure = only_failure(state.message(2, unanswered.clone(), Vec::new(), ms(200)));
    assert_eq!((failure.kind, failure.ranks), (FailureKind::Stuck, vec![1]));
    assert_eq!(
        failure.message,
        "rank 2 (host host2) has waited 2 s at step 8, evaluating, for what ranks tell each other: not begun by rank 1 (host host1) \
         at step 8, evaluating"
    );

    // The last one gave while the message was on its way.
    let mut state = joined(2);
    for rank in [0, 1] {
        state.message(rank, FromRank::Give { number: 0, to_all: true }, Vec::new(), ms(100));
    }
    assert_eq!(state.message(0, unanswered, Vec::new(), ms(200)), []);
}

#[test]
fn every_field_of_a_hello_is_compared() {
    type Change = fn(&mut Hello);
    let changes: [(&str, Change); 7] = [
        ("protocol version", |hello| hello.protocol += 1),
        ("number of ranks", |hello| hello.size += 1),
        ("rank", |hello| hello.rank = 2),
        ("program", |hello| hello.identity.program.push('x')),
        ("recipe", |hello| hello.identity.recipe.push('x')),
        ("data", |hello| hello.identity.data.push('x')),
        ("plan", |hello| hello.identity.plan.push('x')),
    ];
    for (field, change) in changes {
        let mut state = State::new(hello(0, 2), DEADLINES);
        state.message(7, FromRank::Hello(hello(0, 2)), Vec::new(), ms(0));
        let mut differing = hello(1, 2);
        change(&mut differing);
        let actions = state.message(8, FromRank::Hello(differing), Vec::new(), ms(1));
        let [
            Action::Send(8, ToRank::Refused(Refusal::Differs { field: told, .. }), _),
            Action::Close(8),
            Action::Send(7, ..),
        ] = &actions[..]
        else {
            panic!("{field}: {actions:?}");
        };
        assert_eq!(told, field);
        assert_eq!(only_failure(actions).kind, FailureKind::Refused);
    }
}

#[test]
fn exchanges_that_differ_or_wait_for_the_gone_end_the_job() {
    let give = |to_all| FromRank::Give { number: 3, to_all };
    let mut state = joined(2);
    assert_eq!(state.message(0, give(true), Vec::new(), ms(1)), []);
    assert_eq!(only_failure(state.message(1, give(false), Vec::new(), ms(1))).kind, FailureKind::Error);

    let mut state = joined(2);
    state.message(0, FromRank::Leave, Vec::new(), ms(1));
    assert_eq!(state.gone(0, "closed", ms(2)), []);
    let failure = only_failure(state.message(1, give(false), Vec::new(), ms(3)));
    assert_eq!(failure.message, "rank 0 (host host0) has ended while rank 1 (host host1) waits for it");

    let mut state = joined(2);
    state.message(1, give(false), vec![1, 2], ms(1));
    let actions = state.message(0, give(false), vec![3], ms(2));
    let to_root = ToRank::Gathered { number: 3, lengths: vec![1, 2] };
    let to_other = ToRank::Gathered { number: 3, lengths: vec![] };
    assert_eq!(actions, [Action::Send(0, to_root, vec![3, 1, 2]), Action::Send(1, to_other, vec![])]);
}

#[test]
fn all_have_left_when_each_has_said_so() {
    let mut state = joined(2);
    state.message(1, FromRank::Leave, Vec::new(), ms(1));
    assert!(!state.all_left());
    // Who has left is neither lost nor told anything, however long the others take.
    assert_eq!(state.gone(1, "closed", ms(2)), []);
    for time in (100..5000).step_by(100) {
        state.message(0, FromRank::Beat(Progress::default()), Vec::new(), ms(time));
        assert!(state.tick(ms(time)).iter().all(|action| matches!(action, Action::Send(0, ToRank::Beat(_), _))));
    }
    state.message(0, FromRank::Leave, Vec::new(), ms(5000));
    assert!(state.all_left());
    assert_eq!(state.tick(ms(60_000)), []);
}
