//! The control channel over TCP: random schedules of joins, losses and intruders, and what each rank learns.

use bessemer_comm::CommError;
use bessemer_comm::control::{Control, Deadlines, FailureKind, Identity, Job, Phase, Progress, Server, Stop, listen};
use bessemer_comm::launch::Placement;
use bessemer_comm::rendezvous::{self, Membership, meet};
use bessemer_philox::{Stream, halves};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn job(size: usize) -> Job {
    let identity = Identity { program: "1.0".into(), recipe: "r1".into(), data: "d1".into(), plan: "p1".into() };
    // Silence is long on a busy machine; what tests silence sets its own.
    let deadlines = Deadlines {
        join: Duration::from_secs(60),
        notice: Duration::from_millis(50),
        beat: Duration::from_millis(20),
        peer: Duration::from_secs(30),
    };
    Job { cookie: "cookie".into(), size, identity, deadlines }
}

fn serve(job: &Job) -> (Server, Vec<(String, u16)>) {
    let server = Server::start(listen("localhost", 0).unwrap(), job).unwrap();
    let address = vec![("localhost".to_owned(), server.port())];
    (server, address)
}

fn join(job: &Job, rank: usize, address: &[(String, u16)]) -> Result<Control, CommError> {
    Control::join(job, rank, address, |_| ())
}

/// Runs one thread a rank on a joined control channel; the server closes behind them.
fn on_ranks<T: Send>(job: &Job, work: impl Fn(Control) -> T + Sync) -> Vec<T> {
    let (server, address) = serve(job);
    let results = std::thread::scope(|scope| {
        let run = |rank| work(join(job, rank, &address).unwrap());
        let threads: Vec<_> = (0..job.size).map(|rank| scope.spawn(move || run(rank))).collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    server.close(Duration::from_secs(10));
    results
}

/// Waits until `condition` holds; on a busy machine that may take a while.
fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn failure(control: &Control) -> CommError {
    until(|| control.check().err())
}

#[test]
fn ranks_meet_gather_and_leave() {
    let job = job(4);
    on_ranks(&job, |control| {
        let rank = control.rank();
        assert_eq!((control.size(), control.hosts().len()), (4, 4));
        assert!(control.local_address().unwrap().is_loopback());
        let own = vec![rank as u8; rank * 1000];
        let all: Vec<Vec<u8>> = (0..4).map(|rank| vec![rank as u8; rank * 1000]).collect();
        for _ in 0..20 {
            assert_eq!(control.gather(&own, None).unwrap(), (rank == 0).then(|| all.clone()));
            assert_eq!(control.all_gather(&own, None).unwrap(), all);
        }
        assert_eq!(control.check(), Ok(()));
        assert_eq!(control.stop_wished(), None);
        let watcher = control.watcher();
        control.leave();
        assert_eq!(watcher.check(), Ok(()));
    });
}

#[test]
fn a_wish_to_stop_reaches_all_and_the_most_urgent_counts() {
    on_ranks(&job(3), |control| {
        if control.rank() == 2 {
            control.wish_stop(Stop::AfterStep);
        }
        until(|| control.stop_wished().filter(|&stop| stop == Stop::AfterStep));
        control.all_gather(&[], None).unwrap();
        if control.rank() == 1 {
            control.wish_stop(Stop::Now);
            control.wish_stop(Stop::AfterStep);
        }
        until(|| control.stop_wished().filter(|&stop| stop == Stop::Now));
        control.all_gather(&[], None).unwrap();
        assert_eq!(control.stop_wished(), Some(Stop::Now));
        control.leave();
    });
}

#[test]
fn an_error_of_one_rank_reaches_the_others_within_two_seconds() {
    on_ranks(&job(3), |control| {
        let watcher = control.watcher();
        assert_eq!(watcher.check(), Ok(()));
        control.all_gather(&[], None).unwrap();
        let begun = Instant::now();
        if control.rank() == 1 {
            control.fail(FailureKind::Error, "stem.conv: NaN at element 7");
        }
        let CommError::Job(failure) = failure(&control) else { panic!() };
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Error, &[1][..]));
        let host = bessemer_comm::net::host_name();
        assert_eq!(failure.message, format!("rank 1 (host {host}) failed: stem.conv: NaN at element 7"));
        assert_eq!(control.gather(&[], None), Err(CommError::Job(failure.clone())));
        assert_eq!(watcher.check(), Err(CommError::Job(failure)));
    });
}

/// A rank that is alive, and does not give what the others wait for, ends the job on all of them, itself included.
#[test]
fn an_exchange_is_waited_for_within_its_limit() {
    on_ranks(&job(3), |control| {
        control.all_gather(&[], None).unwrap();
        let begun = Instant::now();
        let limit = Duration::from_secs(if control.rank() == 2 { 2 } else { 60 });
        let error = if control.rank() == 1 { failure(&control) } else { control.gather(&[], Some(limit)).unwrap_err() };
        let CommError::Job(failure) = error else { panic!("{error}") };
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Stuck, &[1][..]));
        assert!(
            failure.message.contains("for what ranks tell each other: not begun by rank 1 ("),
            "{}",
            failure.message
        );
    });
}

#[test]
fn a_closed_connection_is_a_lost_rank() {
    on_ranks(&job(3), |control| {
        let rank = control.rank();
        let progress = Progress { step: 12, phase: Phase::Compute, micro_batch: 1, begun: 3, done: 2, collectives: 5 };
        control.report(progress);
        control.all_gather(&[], None).unwrap();
        if rank == 2 {
            return;
        }
        let CommError::Job(failure) = failure(&control) else { panic!() };
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Lost, &[2][..]));
        let host = bessemer_comm::net::host_name();
        let expected = format!(
            "lost rank 2 (host {host}) at step 12, in all-reduce 3 of 5: the connection was closed; last seen "
        );
        assert!(failure.message.starts_with(&expected), "{}", failure.message);
    });
}

#[test]
fn without_its_server_a_rank_has_lost_rank_0() {
    let job = job(2);
    let (server, address) = serve(&job);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(&job, 1, &address).unwrap());
        let _root = join(&job, 0, &address).unwrap();
        let other = other.join().unwrap();
        drop(server);
        let CommError::Job(failure) = failure(&other) else { panic!() };
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Lost, &[0][..]));
        assert!(
            failure.message.starts_with("lost rank 0 (host ") && failure.message.contains(") before the first step: "),
            "{}",
            failure.message
        );
    });
}

/// A rank that is connected and says nothing, as if it were stopped: a hello without heartbeats.
fn silent_rank(job: &Job, rank: usize, port: u16) -> TcpStream {
    let Identity { program, recipe, data, plan } = &job.identity;
    let json = format!(
        "{{\"Hello\":{{\"protocol\":2,\"cookie\":\"{}\",\"rank\":{rank},\"size\":{},\"host\":\"quiet\",\"identity\":\
         {{\"program\":\"{program}\",\"recipe\":\"{recipe}\",\"data\":\"{data}\",\"plan\":\"{plan}\"}}}}}}",
        job.cookie, job.size
    );
    let mut stream = TcpStream::connect(("localhost", port)).unwrap();
    stream.write_all(&(json.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(&[0; 4]).unwrap();
    stream.write_all(json.as_bytes()).unwrap();
    stream
}

#[test]
fn silence_of_a_peer_is_found_in_time() {
    let mut job = job(2);
    job.deadlines.peer = Duration::from_secs(2);
    let (_server, address) = serve(&job);
    let silent = silent_rank(&job, 1, address[0].1);
    let control = join(&job, 0, &address).unwrap();
    let begun = Instant::now();
    let CommError::Job(failure) = failure(&control) else { panic!() };
    assert!((1..4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let expected = "lost rank 1 (host quiet) before the first step: nothing was heard; last seen 2.";
    assert!(failure.message.starts_with(expected), "{}", failure.message);
    drop(silent);
}

#[test]
fn nonsense_from_a_peer_is_a_lost_rank() {
    let job = job(2);
    let (_server, address) = serve(&job);
    let mut peer = silent_rank(&job, 1, address[0].1);
    let control = join(&job, 0, &address).unwrap();
    peer.write_all(b"\x02\0\0\0\0\0\0\0[]").unwrap();
    let CommError::Job(failure) = failure(&control) else { panic!() };
    let expected = "lost rank 1 (host quiet) before the first step: what came is no message of this program (";
    assert!(failure.message.starts_with(expected), "{}", failure.message);
}

#[test]
fn silence_of_rank_0_is_found_in_time() {
    let mut job = job(2);
    job.deadlines.peer = Duration::from_secs(2);
    // A server that takes the connection and says nothing but welcome.
    let listener = listen("localhost", 0).unwrap();
    let address = vec![("localhost".to_owned(), listener.local_addr().unwrap().port())];
    std::thread::scope(|scope| {
        let control = scope.spawn(|| join(&job, 1, &address).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let json = br#"{"Welcome":{"hosts":["a","b"]}}"#;
        stream.write_all(&(json.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(&[0; 4]).unwrap();
        stream.write_all(json).unwrap();
        let control = control.join().unwrap();
        assert_eq!(control.hosts(), ["a", "b"]);
        let CommError::Job(failure) = failure(&control) else { panic!() };
        assert!(failure.message.starts_with("lost rank 0 (host "));
        assert!(failure.message.contains(") before the first step: nothing was heard; last seen 2."));
    });
}

#[test]
fn who_is_missing_is_told_before_and_at_the_deadline() {
    let mut job = job(3);
    job.deadlines.join = Duration::from_secs(1);
    let (_server, address) = serve(&job);
    let notices = Mutex::new(Vec::new());
    let error =
        Control::join(&job, 1, &address, |missing| notices.lock().unwrap().push(missing.to_vec())).err().unwrap();
    assert_eq!(error.to_string(), "of 3 ranks, these did not join within 1 s: 0, 2");
    let notices = notices.into_inner().unwrap();
    assert!(!notices.is_empty() && notices.iter().all(|missing| *missing == [0, 2]), "{notices:?}");

    let port = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    let error = join(&job, 1, &[("localhost".to_owned(), port)]).err().unwrap();
    assert!(matches!(error, CommError::Unreachable { .. }));
    let expected = format!("rank 0 was not reached within 1 s: localhost:{port}: Connection refused");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn a_rank_waits_for_a_server_that_is_late() {
    let job = job(1);
    let port = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    std::thread::scope(|scope| {
        let rank = scope.spawn(|| join(&job, 0, &[("localhost".to_owned(), port)]).unwrap().leave());
        std::thread::sleep(Duration::from_millis(300));
        let server = Server::start(listen("localhost", port).unwrap(), &job).unwrap();
        rank.join().unwrap();
        server.close(Duration::from_secs(5));
    });
}

#[test]
fn refused_processes_learn_why() {
    let job = job(2);
    let (server, address) = serve(&job);
    let other_job = Job { cookie: "other".into(), ..job.clone() };
    assert_eq!(join(&other_job, 1, &address).err(), Some(CommError::WrongCookie));
    std::thread::scope(|scope| {
        let (joined, has_joined) = std::sync::mpsc::channel();
        let (job, address) = (&job, &address);
        // Rank 0 names the missing ranks only to those that have joined.
        let first = scope.spawn(move || Control::join(job, 0, address, |_| joined.send(()).unwrap()));
        has_joined.recv().unwrap();
        let twin = join(job, 0, address).err().unwrap();
        assert_eq!(twin, CommError::RankTaken { host: bessemer_comm::net::host_name() });
        let mut differing = job.clone();
        differing.identity.data = "d2".into();
        let refused = join(&differing, 1, address).err().unwrap();
        let expected = "rank 0 refused this rank: its data is d2, that of rank 0 is d1; all ranks must agree";
        assert_eq!(refused.to_string(), expected);
        let host = bessemer_comm::net::host_name();
        let told = first.join().unwrap().err().unwrap();
        assert_eq!(told.to_string(), format!("rank 1 (host {host}) differs from rank 0 in its data: d2, not d1"));
    });
    drop(server);
}

#[test]
fn the_right_one_of_several_addresses_is_found() {
    let job = job(1);
    let other_job = Job { cookie: "other".into(), ..job.clone() };
    let (_other, other_address) = serve(&other_job);
    let (server, address) = serve(&job);
    let closed = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    // Something else, which hangs up.
    let foreign = listen("localhost", 0).unwrap();
    let foreign_address = ("localhost".to_owned(), foreign.local_addr().unwrap().port());
    let hang_up = std::thread::spawn(move || drop(foreign.accept().unwrap()));
    let addresses = [("localhost".to_owned(), closed), foreign_address, other_address[0].clone(), address[0].clone()];
    join(&job, 0, &addresses).unwrap().leave();
    hang_up.join().unwrap();
    server.close(Duration::from_secs(5));
}

#[test]
fn ranks_meet_where_their_launcher_says() {
    let port = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    let placement = |rank: usize| {
        let local =
            format!("BESSEMER_RANK={rank} BESSEMER_SIZE=3 BESSEMER_COOKIE=x BESSEMER_RENDEZVOUS=127.0.0.1:{port}");
        let pairs = local.split(' ').filter_map(|pair| pair.split_once('='));
        Placement::from_variables(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()).unwrap()
    };
    let meet = |rank| meet(&placement(rank), Identity::default(), Deadlines::default(), None, |_| ());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let Membership { server, control } = meet(rank).unwrap();
                    assert_eq!((control.rank(), control.size(), server.is_some()), (rank, 3, rank == 0));
                    control.all_gather(&[], None).unwrap();
                    control.leave();
                    if let Some(server) = server {
                        server.close(Duration::from_secs(10));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });

    let taken = listen("127.0.0.1", port).unwrap();
    let error = meet(0).err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot listen on port {port}: Address already in use")), "{error}");
    drop(taken);
    let alone = rendezvous::meet(&Placement::alone(), Identity::default(), Deadlines::default(), None, |_| ());
    let expected =
        "the launcher does not say where rank 0 is, and there is no MPI to ask: set BESSEMER_RENDEZVOUS=host:port";
    assert_eq!(alone.err().unwrap().to_string(), expected);
}

#[test]
fn a_stuck_collective_ends_the_job() {
    on_ranks(&job(2), |control| {
        control.all_gather(&[], None).unwrap();
        let progress = Progress { step: 3, begun: 2, done: 1, collectives: 4, ..Progress::default() };
        if control.rank() == 0 {
            let error = control.stuck(progress, Duration::from_secs(600)).to_string();
            assert!(
                error.contains("has waited 600 s at step 3, in all-reduce 2 of 4: not begun by rank 1 (host "),
                "{error}"
            );
            assert_eq!(failure(&control).to_string(), error);
        } else {
            let CommError::Job(failure) = failure(&control) else { panic!() };
            assert_eq!((failure.kind, failure.ranks), (FailureKind::Stuck, vec![1]));
        }
    });
}

/// What a rank of a random schedule does after its exchanges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Leaves,
    Drops,
    Errs,
    Doubles,
    NeverJoins,
}

/// One job of random delays, losses, errors and strangers: either all exchanges are right on all ranks, or every rank that lives
/// learns of one of the faults.
fn random_job(seed: u64) -> (End, usize) {
    let mut random = Stream::new(halves(seed), [0, 0, 0]);
    let mut job = job(1 + random.below(5) as usize);
    let plans: Vec<(Duration, u32, End)> = (0..job.size)
        .map(|_| {
            let end = match random.below(16) {
                0 => End::Drops,
                1 => End::Errs,
                2 => End::Doubles,
                3 if seed.is_multiple_of(16) => End::NeverJoins,
                _ => End::Leaves,
            };
            let exchanges = if end == End::Leaves { 5 } else { random.below(5) };
            (Duration::from_micros(u64::from(random.below(8000))), exchanges, end)
        })
        .collect();
    let faulty: Vec<usize> = (0..job.size).filter(|&rank| plans[rank].2 != End::Leaves).collect();
    if plans.iter().any(|plan| plan.2 == End::NeverJoins) {
        job.deadlines.join = Duration::from_millis(300);
    }
    let strangers = random.below(3);
    let (server, address) = serve(&job);
    let noise: Vec<u8> = (0..random.below(60)).map(|_| random.next_u32() as u8).collect();
    let run = |rank: usize| -> Option<Result<(), CommError>> {
        let (delay, exchanges, end) = plans[rank];
        if end == End::NeverJoins {
            return None;
        }
        std::thread::sleep(delay);
        let control = match join(&job, rank, &address) {
            Ok(control) => control,
            Err(error) => return Some(Err(error)),
        };
        for number in 0..exchanges {
            let own = vec![rank as u8; number as usize];
            let expected: Vec<Vec<u8>> = (0..job.size).map(|rank| vec![rank as u8; number as usize]).collect();
            match control.all_gather(&own, None) {
                Ok(parts) => assert_eq!(parts, expected, "seed {seed}"),
                Err(error) => return Some(Err(error)),
            }
        }
        match end {
            End::Leaves => control.leave(),
            End::Errs => control.fail(FailureKind::Error, "as the schedule says"),
            // A second process comes with the same rank, and the first is gone.
            End::Doubles => drop(silent_rank(&job, rank, address[0].1)),
            End::Drops | End::NeverJoins => {}
        }
        None
    };
    let outcomes: Vec<Option<Result<(), CommError>>> = std::thread::scope(|scope| {
        for _ in 0..strangers {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(("localhost", address[0].1)).unwrap();
                let _ = stream.write_all(&noise);
                let other = Job { cookie: "other".into(), ..job.clone() };
                let error = join(&other, 0, &address).err();
                let refused = matches!(error, Some(CommError::WrongCookie | CommError::Unreachable { .. }));
                assert!(refused, "seed {seed}: {error:?}");
            });
        }
        let run = &run;
        let threads: Vec<_> = (0..job.size).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (rank, outcome) in outcomes.iter().enumerate() {
        let context = format!("seed {seed}, rank {rank}: {plans:?}: {outcome:?}");
        match (outcome, plans[rank].2) {
            (None, end) => assert!(end != End::Leaves || faulty.is_empty(), "{context}"),
            (Some(Err(CommError::Job(failure))), _) => {
                assert!(
                    failure.ranks.iter().all(|rank| faulty.contains(rank)) && !failure.ranks.is_empty(),
                    "{context}"
                );
                let missing = plans[failure.ranks[0]].2 == End::NeverJoins;
                let lost = matches!(failure.kind, FailureKind::Lost | FailureKind::Error);
                assert!(if missing { failure.kind == FailureKind::Missing } else { lost }, "{context}");
            }
            _ => panic!("{context}"),
        }
    }
    server.close(Duration::from_secs(5));
    (faulty.first().map_or(End::Leaves, |&rank| plans[rank].2), job.size)
}

#[test]
fn random_schedules_over_tcp_end_well_or_with_one_fault() {
    let mut ends = [0; 5];
    for seed in 0..250 {
        let (end, _) = random_job(seed);
        ends[end as usize] += 1;
    }
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}
