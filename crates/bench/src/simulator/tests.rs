//! Steps whose time is known in closed form, and what must hold for all steps.

use super::*;
use bessemer_ir::philox;

pub(super) fn collective(bytes: u64, ready: usize, needed: usize) -> Collective {
    Collective { bytes, ready, needed, each_micro_batch: false }
}

/// The last call is the update.
pub(super) fn profile(calls: &[f64], collectives: &[Collective]) -> StepProfile {
    StepProfile {
        model: None,
        samples: 16.0,
        earlier_seconds: 0.0,
        calls: calls.to_vec(),
        backward_end: calls.len() - 1,
        collectives: collectives.to_vec(),
        input_rate: None,
        step_seconds: Vec::new(),
    }
}

/// One device a node, and a link between nodes of `gbytes` with a latency of `seconds`. Two nodes exchange S bytes in
/// `2 seconds + S / gbytes`.
pub(super) fn link(gbytes: f64, seconds: f64) -> Cluster {
    let between = Link { latency_us: seconds * 1e6, gbytes };
    Cluster { devices: 1, inside: between, between, slow_down: 0.0, ..Cluster::find("v100x8-ib100").unwrap() }
}

const TWO: Ranks = Ranks { nodes: 2, devices: 1 };
const GB: u64 = 1_000_000_000;

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value}, expected {expected}");
}

#[test]
fn without_collectives_further_ranks_cost_nothing() {
    let one = profile(&[1.0, 2.0, 1.0], &[]).simulate(&link(1.0, 0.0), Ranks::ONE);
    assert_near(one.step_seconds, 4.0);
    assert_near(one.throughput, 4.0);
    let two = profile(&[1.0, 2.0, 1.0], &[]).simulate(&link(1.0, 0.0), TWO);
    assert_near(two.throughput, 8.0);
    assert_near(two.speed_up, 2.0);
    assert_near(two.efficiency, 1.0);
    assert_eq!((two.exposed_seconds, two.binds), (0.0, Binds::Compute));
}

#[test]
fn one_rank_sends_nothing() {
    let step = profile(&[1.0, 2.0, 1.0], &[collective(50 * GB, 1, 2)]);
    let one = step.simulate(&link(1.0, 1.0), Ranks::ONE);
    assert_near(one.step_seconds, 4.0);
    assert_near(one.efficiency, 1.0);
}

#[test]
fn a_collective_hides_behind_calls_that_do_not_need_it() {
    // Ready after 1 s, through after 3 s, needed after 4 s.
    let hidden = profile(&[1.0, 3.0, 1.0], &[collective(2 * GB, 0, 2)]).simulate(&link(1.0, 0.0), TWO);
    assert_near(hidden.step_seconds, 5.0);
    assert_near(hidden.exposed_seconds, 0.0);
    assert_eq!(hidden.binds, Binds::Compute);
}

#[test]
fn a_collective_that_is_needed_at_once_is_exposed() {
    let exposed = profile(&[1.0, 3.0, 1.0], &[collective(2 * GB, 1, 2)]).simulate(&link(1.0, 0.25), TWO);
    assert_near(exposed.step_seconds, 5.0 + 2.0 + 2.0 * 0.25);
    assert_near(exposed.exposed_seconds, 2.5);
    assert_near(exposed.efficiency, 5.0 / 7.5);
    let slow = profile(&[1.0, 3.0, 1.0], &[collective(20 * GB, 1, 2)]).simulate(&link(1.0, 0.0), TWO);
    assert_eq!(slow.binds, Binds::LinkBetween);
}

#[test]
fn collectives_run_one_after_the_other() {
    // Both ready after 1 s; the second one is through 3 s later and needed after 2 s.
    let step = profile(&[1.0, 1.0, 1.0], &[collective(GB, 0, 3), collective(2 * GB, 0, 2)]);
    assert_near(step.simulate(&link(1.0, 0.0), TWO).step_seconds, 1.0 + 3.0 + 1.0);
    // What nobody waits for ends with the step.
    let last = profile(&[1.0, 1.0, 1.0], &[collective(5 * GB, 0, 3)]);
    assert_near(last.simulate(&link(1.0, 0.0), TWO).step_seconds, 6.0);
}

#[test]
fn without_overlap_gradients_are_sent_behind_the_backward_pass() {
    // 2 s of sending behind 4 s of backward pass, or beside 3 s of it.
    let step = StepProfile { backward_end: 2, ..profile(&[1.0, 3.0, 1.0], &[collective(2 * GB, 0, 2)]) };
    assert_near(step.simulate(&link(1.0, 0.0), TWO).step_seconds, 5.0);
    let apart = step.without_overlap();
    assert!(apart.check().is_ok());
    assert_near(apart.simulate(&link(1.0, 0.0), TWO).step_seconds, 7.0);
    assert_near(apart.simulate(&link(1.0, 0.0), Ranks::ONE).step_seconds, 5.0);
}

#[test]
fn a_micro_batch_waits_for_its_sums() {
    let own = |bytes, ready| Collective { each_micro_batch: true, ..collective(bytes, ready, ready + 1) };
    let gradients = [collective(2 * GB, 1, 3), collective(GB, 2, 3)];
    let step = profile(&[1.0, 1.0, 1.0, 1.0], &[own(GB, 0), gradients[0], gradients[1]]);
    // 1 s of the sum behind the first call; of 3 s of gradients from the second call on, 1 s is hidden.
    assert_near(step.simulate(&link(1.0, 0.0), TWO).step_seconds, 4.0 + 1.0 + 2.0);
    // A bucket is of gradients alone.
    let packed = buckets::merged(&step.collectives, &[2]);
    assert_eq!(packed, [own(GB, 0), collective(3 * GB, 2, 3)]);
    assert_eq!(buckets::counts_by_size(&step.collectives, 1, 1), [1, 1]);
    assert_eq!(buckets::choose(&step, &link(1.0, 0.0), TWO).iter().sum::<usize>(), 2);
}

#[test]
fn kernels_are_slower_beside_a_collective() {
    let cluster = Cluster { slow_down: 0.5, ..link(1.0, 0.0) };
    let step = |bytes| profile(&[1.0, 2.0, 1.0], &[collective(bytes, 0, 2)]).simulate(&cluster, TWO);
    // Beside 1.5 s of sending, 1 s of the second call is done; the other second at full speed.
    assert_near(step(3 * GB / 2).step_seconds, 1.0 + 1.5 + 1.0 + 1.0);
    assert_near(step(3 * GB / 2).exposed_seconds, 0.5);
    assert_near(step(3 * GB).step_seconds, 1.0 + 3.0 + 1.0);
}

#[test]
fn earlier_micro_batches_hide_nothing_and_send_nothing() {
    let step = StepProfile { earlier_seconds: 10.0, ..profile(&[1.0, 1.0], &[collective(2 * GB, 0, 1)]) };
    assert_near(step.simulate(&link(1.0, 0.0), TWO).step_seconds, 14.0);
}

#[test]
fn input_is_a_limit_of_the_node() {
    let step = StepProfile { input_rate: Some(8.0), ..profile(&[2.0, 1.0], &[]) };
    let two_devices = Ranks { nodes: 1, devices: 2 };
    let limited = step.simulate(&link(1.0, 0.0), two_devices);
    assert_near(limited.step_seconds, 4.0);
    assert_near(limited.throughput, 8.0);
    assert_eq!(limited.binds, Binds::Input);
    let per_node = step.simulate(&link(1.0, 0.0), TWO);
    assert_near(per_node.step_seconds, 3.0);
    assert_eq!(per_node.binds, Binds::Compute);
}

#[test]
fn a_step_waits_for_the_slowest_rank() {
    // Of 1, 2, 3: the larger of two draws is 1 with probability 1/9, 2 with 3/9, 3 with 5/9.
    assert_near(expected_maximum(&[3.0, 1.0, 2.0], 2), (1.0 + 2.0 * 3.0 + 3.0 * 5.0) / 9.0 / 2.0);
    assert_near(expected_maximum(&[3.0, 1.0, 2.0], 1), 1.0);
    assert_near(expected_maximum(&[], 8), 1.0);
    let step = StepProfile { step_seconds: vec![1.0, 3.0], ..profile(&[1.0, 1.0], &[]) };
    assert_near(step.simulate(&link(1.0, 0.0), TWO).step_seconds, 2.0 * 1.25);
    assert_near(step.simulate(&link(1.0, 0.0), Ranks::ONE).step_seconds, 2.0);
}

#[test]
fn a_fixed_cost_is_that_of_several_ranks() {
    let cluster = Cluster { fixed_ms: 500.0, ..link(1.0, 0.0) };
    let step = profile(&[1.0, 1.0], &[]);
    assert_near(step.simulate(&cluster, TWO).step_seconds, 2.5);
    assert_near(step.simulate(&cluster, Ranks::ONE).step_seconds, 2.0);
}

#[test]
fn merged_calls_take_the_same_time() {
    for seed in 0..50 {
        let random = |index: u64| f64::from(philox::uniform(seed, 0, 0, index));
        let calls: Vec<f64> = (0..20).map(random).collect();
        let last = |i: u64| 14 + (random(40 + i) * 7.0) as usize;
        let gradients: Vec<Collective> =
            (0..4).map(|i| collective((random(30 + i) * 4e9) as u64, 3 * i as usize, last(i))).collect();
        let step = StepProfile { backward_end: 12, earlier_seconds: 1.0, ..profile(&calls, &gradients) };
        let merged = step.clone().with_merged_calls();
        assert!(merged.calls.len() <= 10 && merged.check().is_ok(), "{merged:?}");
        assert_near(merged.calls[..merged.backward_end].iter().sum(), calls[..12].iter().sum());
        let cluster = Cluster { slow_down: random(50), ..link(1.0, 0.01) };
        assert_near(merged.simulate(&cluster, TWO).step_seconds, step.simulate(&cluster, TWO).step_seconds);
    }
}

/// Random steps on faster and faster links, and with more and more compute.
#[test]
fn more_bandwidth_or_less_latency_is_never_slower() {
    for seed in 0..200 {
        let random = |index: u64| f64::from(philox::uniform(seed, 0, 0, index));
        let calls: Vec<f64> = (0..6).map(random).collect();
        let gradients: Vec<Collective> =
            (0..5).map(|i| collective((random(10 + i) * 2e9) as u64, i as usize, 5)).collect();
        let step = StepProfile { input_rate: (seed % 2 == 0).then_some(20.0), ..profile(&calls, &gradients) };
        let slow_down = random(30);
        let seconds = |gbytes, latency| {
            let cluster = Cluster { slow_down, ..link(gbytes, latency) };
            step.simulate(&cluster, TWO).step_seconds
        };
        let compute = step.compute_seconds();
        let mut before = f64::INFINITY;
        for gbytes in [0.25, 0.5, 1.0, 2.0, 8.0, 1e9] {
            let now = seconds(gbytes, 0.1);
            assert!(now <= before + 1e-12 && now >= compute, "{seed}: {now} at {gbytes} GB/s after {before}");
            assert!(seconds(gbytes, 0.0) <= now + 1e-12);
            before = now;
        }
    }
}

#[test]
fn a_profile_is_checked_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.json");
    let good = profile(&[1.0, 2.0], &[collective(8, 0, 1)]);
    let read = |profile: &StepProfile| {
        std::fs::write(&path, serde_json::to_string(profile).unwrap()).unwrap();
        StepProfile::read(&path).map_err(|error| error.to_string())
    };
    assert_eq!(read(&good), Ok(good.clone()));
    let problem = |profile: StepProfile| read(&profile).unwrap_err();
    assert!(problem(StepProfile { samples: 0.0, ..good.clone() }).ends_with("steps.json: `samples` must be above 0"));
    assert!(problem(StepProfile { calls: vec![-1.0, 2.0], ..good.clone() }).contains("at least 0"));
    assert!(problem(good.with_collectives(vec![collective(8, 1, 1)])).contains("`ready` below `needed`"));
    let unordered = vec![collective(8, 1, 2), collective(8, 0, 1)];
    assert!(problem(good.with_collectives(unordered)).contains("order of `ready`"));
    std::fs::write(&path, "{}").unwrap();
    assert!(StepProfile::read(&path).unwrap_err().to_string().contains("missing field"));
    assert!(StepProfile::read(&folder.path().join("absent.json")).unwrap_err().to_string().contains("absent.json"));
}
