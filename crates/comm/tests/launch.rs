//! Which variables make which rank: tables of what launchers set.

use bessemer_comm::CommError;
use bessemer_comm::launch::{Launcher, Placement, Rendezvous, Variables, expand_node_list};
use proptest::prelude::*;

/// `A=1 B=2` as variables.
fn variables(text: &str) -> Variables {
    text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn place(text: &str) -> Result<Placement, CommError> {
    Placement::from_variables(&variables(text))
}

fn address(host: &str, port: u16, cookie: &str) -> Option<Rendezvous> {
    Some(Rendezvous::Address { host: host.to_owned(), port, cookie: cookie.to_owned() })
}

#[test]
fn every_launcher_says_who_we_are() {
    use Launcher::*;
    let mpi = || Some(Rendezvous::Mpi);
    let slurm_hosts = "SLURM_JOB_ID=77 SLURM_STEP_ID=2 SLURM_STEP_NODELIST=n[03-04] SLURM_STEP_TASKS_PER_NODE=2(x2)";
    // variables, launcher, others, rank, size, local rank, local size, rendezvous
    let table = [
        (
            "BESSEMER_RANK=1 BESSEMER_SIZE=2 BESSEMER_LOCAL_RANK=1 BESSEMER_LOCAL_SIZE=2 BESSEMER_RENDEZVOUS=127.0.0.1:4000 \
             BESSEMER_COOKIE=abc"
                .to_owned(),
            Bessemer,
            vec![],
            (1, 2, Some(1), Some(2)),
            address("127.0.0.1", 4000, "abc"),
        ),
        (
            "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500".to_owned(),
            Torchrun,
            vec![],
            (5, 8, Some(1), Some(4)),
            address("node0", 29500, "torchrun 29500  "),
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=37759 \
             TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=ae8a TORCHELASTIC_RESTART_COUNT=1"
                .to_owned(),
            Torchrun,
            vec![],
            (0, 2, Some(0), Some(2)),
            address("localhost", 37760, "torchrun 37759 ae8a 1"),
        ),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True".to_owned(),
            Torchrun,
            vec![],
            (1, 2, None, None),
            address("job-master", 65534, "torchrun 65535  "),
        ),
        (
            "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2".to_owned(),
            OpenMpi,
            vec![],
            (3, 4, Some(1), Some(2)),
            mpi(),
        ),
        (
            "MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=0 MV2_COMM_WORLD_LOCAL_SIZE=2".to_owned(),
            Mvapich,
            vec![],
            (2, 4, Some(0), Some(2)),
            mpi(),
        ),
        (
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=8".to_owned(),
            Hydra,
            vec![Pmi],
            (1, 2, Some(1), Some(2)),
            mpi(),
        ),
        (
            format!("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 {slurm_hosts}"),
            Slurm,
            vec![],
            (3, 4, Some(1), Some(2)),
            address("n03", 20_541, "slurm 77 2 "),
        ),
        // srun --mpi=pmi2
        (
            format!("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 PMI_RANK=3 PMI_SIZE=4 {slurm_hosts}"),
            Slurm,
            vec![Pmi],
            (3, 4, Some(1), Some(2)),
            address("n03", 20_541, "slurm 77 2 "),
        ),
        // torchrun with 4 processes on each of 2 nodes, started by srun
        (
            format!("RANK=6 WORLD_SIZE=8 MASTER_ADDR=n03 MASTER_PORT=5 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 {slurm_hosts}"),
            Torchrun,
            vec![Slurm],
            (6, 8, None, None),
            address("n03", 5, "torchrun 5  "),
        ),
        // the same with one process on each node: torchrun gives numbers of its own
        (
            format!("RANK=1 WORLD_SIZE=2 MASTER_ADDR=n03 MASTER_PORT=5 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 {slurm_hosts}"),
            Torchrun,
            vec![Slurm],
            (1, 2, None, None),
            address("n03", 5, "torchrun 5  "),
        ),
        // the daemons of mpirun and mpiexec, started by srun, one on each of 3 nodes
        (
            format!("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 {slurm_hosts}"),
            OpenMpi,
            vec![Slurm],
            (1, 8, None, None),
            mpi(),
        ),
        (
            format!("PMI_RANK=7 PMI_SIZE=8 MPI_LOCALRANKID=1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 {slurm_hosts}"),
            Hydra,
            vec![Slurm, Pmi],
            (7, 8, Some(1), None),
            mpi(),
        ),
        (
            "PALS_RANKID=9 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4 PMI_RANK=9 PMI_SIZE=12 PMI_LOCAL_RANK=1".to_owned(),
            Pals,
            vec![Pmi],
            (9, 12, Some(1), Some(4)),
            mpi(),
        ),
        (
            "PMI_RANK=0 PMI_SIZE=2 PMI_LOCAL_RANK=0 PMI_LOCAL_SIZE=1".to_owned(),
            Pmi,
            vec![],
            (0, 2, Some(0), Some(1)),
            mpi(),
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 BESSEMER_RENDEZVOUS=[::1]:80".to_owned(),
            OpenMpi,
            vec![],
            (1, 2, None, None),
            address("::1", 80, "[::1]:80"),
        ),
    ];
    for (text, launcher, others, (rank, size, local_rank, local_size), rendezvous) in table {
        let expected = Placement { launcher: Some(launcher), others, rank, size, local_rank, local_size, rendezvous };
        assert_eq!(place(&text), Ok(expected), "{text}");
    }
}

#[test]
fn processes_without_a_launcher_are_alone() {
    for text in [
        "",
        "HOME=/root LOCAL_RANK=3 MASTER_ADDR=x",
        // a batch script, and a shell within an allocation
        "SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0",
        "SLURM_JOB_ID=1 SLURM_NTASKS=8",
    ] {
        assert_eq!(place(text), Ok(Placement::alone()), "{text}");
    }
}

#[test]
fn contradictions_and_bad_values_are_errors_that_name_the_variables() {
    let ompi = |rank: usize, size: usize| format!("OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={size}");
    let table = [
        (
            format!("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1 {}", ompi(2, 4)),
            "launchers disagree: torchrun (which comes first) says rank 0 of 1, mpirun of Open MPI says rank 2 of 4; unset the \
             variables of the one that did not start this process (RANK, WORLD_SIZE or OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)",
        ),
        (
            format!("PMI_RANK=1 PMI_SIZE=4 {}", ompi(2, 4)),
            "launchers disagree: mpirun of Open MPI (which comes first) says rank 2 of 4, a process manager with PMI says rank 1 of \
             4; unset the variables of the one that did not start this process (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE or \
             PMI_RANK, PMI_SIZE)",
        ),
        (
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=a PMI_RANK=0 PMI_SIZE=4"
                .to_owned(),
            "launchers disagree: srun (which comes first) says rank 0 of 2, a process manager with PMI says rank 0 of 4; unset the \
             variables of the one that did not start this process (SLURM_PROCID, SLURM_STEP_NUM_TASKS or PMI_RANK, PMI_SIZE)",
        ),
        ("RANK=3".to_owned(), "RANK is set, but WORLD_SIZE is not; torchrun sets both: set both or neither"),
        ("WORLD_SIZE=3".to_owned(), "WORLD_SIZE is set, but RANK is not; torchrun sets both: set both or neither"),
        (
            "RANK=0 WORLD_SIZE=3 MASTER_ADDR=a".to_owned(),
            "RANK is set, but MASTER_PORT is not; torchrun sets both: set both or neither",
        ),
        (
            "BESSEMER_RANK=0 BESSEMER_SIZE=3".to_owned(),
            "BESSEMER_RANK is set, but BESSEMER_RENDEZVOUS is not; bessemer launch sets both: set both or neither",
        ),
        (
            "PALS_RANKID=0".to_owned(),
            "PALS_RANKID is set, but PMI_SIZE is not; mpiexec of PALS sets both: set both or neither",
        ),
        (ompi(4, 4), "OMPI_COMM_WORLD_RANK is \"4\", expected a whole number in 0..=3"),
        (ompi(0, 0), "OMPI_COMM_WORLD_SIZE is \"0\", expected a whole number from 1 on"),
        ("PMI_RANK=x PMI_SIZE=2".to_owned(), "PMI_RANK is \"x\", expected a whole number in 0..=1"),
        (
            format!("OMPI_COMM_WORLD_LOCAL_SIZE=5 {}", ompi(0, 4)),
            "OMPI_COMM_WORLD_LOCAL_SIZE is \"5\", expected a whole number in 1..=4",
        ),
        (
            format!("OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=2 {}", ompi(0, 4)),
            "OMPI_COMM_WORLD_LOCAL_RANK is \"2\", expected a whole number in 0..=1",
        ),
        (
            "RANK=0 WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=70000".to_owned(),
            "MASTER_PORT is \"70000\", expected a whole number in 1..=65535",
        ),
        (
            format!("BESSEMER_RENDEZVOUS=host {}", ompi(0, 4)),
            "BESSEMER_RENDEZVOUS is \"host\", expected host:port with a port in 1..=65535",
        ),
        (
            format!("BESSEMER_RENDEZVOUS=:80 {}", ompi(0, 4)),
            "BESSEMER_RENDEZVOUS is \":80\", expected host:port with a port in 1..=65535",
        ),
        (
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=a[1-".to_owned(),
            "node list \"a[1-\": `[` is not closed",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(place(&text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn node_lists_expand_in_order() {
    let table = [
        ("a", "a"),
        ("a,b-1", "a b-1"),
        ("a[01-03,7],b", "a01 a02 a03 a7 b"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[01-02].x", "r1n01.x r1n02.x r2n01.x r2n02.x"),
        ("gpu[5]-ib,cpu[0,2-3]", "gpu5-ib cpu0 cpu2 cpu3"),
    ];
    for (list, expected) in table {
        assert_eq!(expand_node_list(list).unwrap().join(" "), expected, "{list}");
    }
    let wrong = [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("a[1", "`[` is not closed"),
        ("a]", "`]` at character 1 has no partner"),
        ("a[[1]]", "`[` at character 2 has no partner"),
        ("a[]", "`` is not a number"),
        ("a[x]", "`x` is not a number"),
        ("a[+1]", "`+1` is not a number"),
        ("a[3-1]", "range `3-1` descends"),
        ("a[0-65536]", "more than 65536 names"),
        ("a[0-18446744073709551615]", "more than 65536 names"),
        ("a[0-999][0-999]", "more than 65536 names"),
    ];
    for (list, problem) in wrong {
        let expected = CommError::NodeList { list: list.to_owned(), problem: problem.to_owned() };
        assert_eq!(expand_node_list(list), Err(expected), "{list}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_node_lists_panic(list in "[a-c0-9\\[\\],-]{0,24}") {
        let _ = expand_node_list(&list);
    }

    #[test]
    fn written_ranges_are_read_back(low in 0_u32..200, count in 1_u32..50, width in 1_usize..5) {
        let names: Vec<String> = (low..low + count).map(|value| format!("n{value:0width$}")).collect();
        let list = format!("n[{low:0width$}-{:0width$}]", low + count - 1);
        prop_assert_eq!(expand_node_list(&list).unwrap(), names);
    }
}
