//! Frames: what is written is read back, and no bytes do harm.

use super::*;
use proptest::prelude::*;

fn messages() -> Vec<FromRank> {
    let identity = Identity { program: "1".into(), recipe: "é\"".into(), data: String::new(), plan: "\0".into() };
    let hello = Hello { protocol: 7, cookie: "c".into(), rank: 1, size: 2, host: "h".into(), identity };
    let progress = Progress { step: u64::MAX, phase: Phase::Save, micro_batch: 3, begun: 2, done: 1, collectives: 9 };
    vec![
        FromRank::Hello(hello),
        FromRank::Beat(progress),
        FromRank::Failed { kind: FailureKind::Error, message: "out of memory".into() },
        FromRank::Stop(Stop::Now),
        FromRank::Stuck { progress, seconds: 600 },
        FromRank::Unanswered { number: 3, seconds: 600 },
        FromRank::Give { number: 1, to_all: true },
        FromRank::Leave,
    ]
}

#[test]
fn a_later_hello_is_understood_as_far_as_it_must_be() {
    let json = br#"{"Hello":{"protocol":2,"cookie":"c","rank":1,"new":[1]}}"#;
    let mut bytes = (json.len() as u32).to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(json);
    let (message, _) = read::<FromRank>(&mut bytes.as_slice(), MAX_PAYLOAD).unwrap();
    let identity = Identity::default();
    let expected = Hello { protocol: 2, cookie: "c".into(), rank: 1, size: 0, host: String::new(), identity };
    assert_eq!(message, FromRank::Hello(expected));
}

#[test]
fn progress_reads_as_a_sentence() {
    let progress = |phase, begun, done| Progress { step: 120, phase, micro_batch: 2, begun, done, collectives: 9 };
    let table = [
        (progress(Phase::Start, 0, 0), "before the first step"),
        (progress(Phase::Load, 0, 0), "at step 120, loading micro-batch 2"),
        (progress(Phase::Compute, 3, 3), "at step 120, computing micro-batch 2"),
        (progress(Phase::Compute, 6, 3), "at step 120, in all-reduce 4 of 9"),
        (progress(Phase::Update, 9, 9), "at step 120, updating the weights"),
        (progress(Phase::Save, 9, 9), "at step 120, saving"),
        (progress(Phase::Evaluate, 9, 9), "at step 120, evaluating"),
    ];
    for (progress, text) in table {
        assert_eq!(progress.to_string(), text);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(payload in prop::collection::vec(any::<u8>(), 0..50), cut in 1_usize..40) {
        let mut bytes = Vec::new();
        for message in messages() {
            write(&mut bytes, &message, &payload).unwrap();
        }
        let mut from = bytes.as_slice();
        for message in messages() {
            prop_assert_eq!(read::<FromRank>(&mut from, MAX_PAYLOAD).unwrap(), (message, payload.clone()));
        }
        let end = read::<FromRank>(&mut from, MAX_PAYLOAD).unwrap_err();
        prop_assert_eq!(end, CommError::Closed { reason: "the connection was closed".to_owned() });
        // A frame that is cut anywhere is a closed connection.
        let last = frame(&messages()[0], &payload);
        let short = &last[..last.len() - cut.min(last.len())];
        let error = read::<FromRank>(&mut &*short, MAX_PAYLOAD).unwrap_err();
 prop_assert_eq!(error, CommError::Closed { reason: "the connection was closed".to_owned() });
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read::<FromRank>(&mut bytes.as_slice(), MAX_PAYLOAD);
    }

    #[test]
    fn no_changed_byte_does_harm(index in 0_usize..7, at: prop::sample::Index, value: u8) {
        let mut bytes = frame(&messages()[index], b"payload");
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = read::<FromRank>(&mut bytes.as_slice(), MAX_PAYLOAD);
        let _ = read::<ToRank>(&mut bytes.as_slice(), MAX_PAYLOAD);
    }
}

#[test]
fn lengths_are_bounded_and_believed_only_as_bytes_come() {
    for (message, payload) in [(MAX_MESSAGE + 1, 0), (0, MAX_PAYLOAD + 1), (u32::MAX, u32::MAX)] {
        let bytes: Vec<u8> = message.to_le_bytes().into_iter().chain(payload.to_le_bytes()).collect();
        assert!(matches!(read::<FromRank>(&mut bytes.as_slice(), MAX_PAYLOAD), Err(CommError::Malformed { .. })));
    }
    let with_payload = frame(&FromRank::Leave, &[1]);
    assert!(matches!(read::<FromRank>(&mut with_payload.as_slice(), 0), Err(CommError::Malformed { .. })));
    let bytes: Vec<u8> = 0_u32.to_le_bytes().into_iter().chain(MAX_PAYLOAD.to_le_bytes()).collect();
    assert!(matches!(read::<FromRank>(&mut bytes.as_slice(), MAX_PAYLOAD), Err(CommError::Closed { .. })));
}
