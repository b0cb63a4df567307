//! Training on several GPUs by the program itself, over mocks of the driver and of NCCL: a process a rank.

use crate::common::{Ran, ran};
use crate::machine::{FILES, Machine, TRAIN, copy_folder, difference, tensors};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const BERT: &str = r#"
name = "tiny-text"
model = { name = "bert-tiny", vocab_multiple = 8 }
data = { source = "synthetic" }
text = { sequence_length = 8, max_predictions = 2 }
train = { batch_size = 2, accumulation = 4, steps = 3, seed = 3, clip_norm = 1.0 }
optimizer = { kind = "lamb", weight_decay = 0.01, decay_exclude = "layer_norm_and_bias" }
schedule = { kind = "constant", base_lr = 0.002 }
eval = { batch_size = 4, every_steps = 3 }
checkpoint = { every_steps = 2 }
"#;

/// A command on mocked GPUs, of which there are two.
fn command(machine: &Machine, arguments: &str) -> Command {
    let on = format!("{arguments} --device cuda --tuning off --gpu-libraries {}", machine.mocks.display());
    let mut command = machine.command(&on);
    command.env("MOCK_DEVICES", "2").env_remove("NCCL_ALGO").env_remove("NCCL_PROTO");
    command
}

fn run(machine: &Machine, arguments: &str) -> Ran {
    ran(&mut command(machine, arguments))
}

/// Tensors of a file but running statistics, which are averaged over ranks and updated one after the other by one rank.
fn without_statistics(file: &[u8]) -> Vec<u8> {
    let kept: BTreeMap<String, Vec<u8>> =
        tensors(file).into_iter().filter(|(name, _)| !name.contains("running")).collect();
    let views = kept.iter().map(|(name, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![bytes.len() / 4], bytes);
        (name.as_str(), view.unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// Two ranks with two micro-batches each come to what one rank comes to with four, but for rounding; checkpoints go from GPUs to
/// processors, and back.
#[test]
fn two_gpus_train_as_one() {
    let Some(machine) = Machine::new("two_gpus_train_as_one") else { return };
    let train = format!("{TRAIN} --steps 3 --set train.accumulation=4 --set data.train_samples=24");
    run(&machine, &format!("{train} --out one")).ok();
    let told = machine.path("variables");
    let two = ran(command(&machine, &format!("{train} --devices 2 --out two").replace("--quiet", ""))
        .env("MOCK_NCCL_VARIABLES", &told))
    .ok();
    assert!(two.err.contains("a step is 2 ranks x 2 micro-batches x 2 = 8 images"), "{}", two.err);
    assert_eq!(two.out.matches("steps       3").count(), 1, "rank 0 alone prints:\n{}", two.out);
    assert_eq!(
        fs::read_to_string(&told).unwrap(),
        "NCCL_ALGO=Ring\nNCCL_PROTO=Simple\nNCCL_SOCKET_IFNAME=\n".repeat(2)
    );
    assert_eq!(machine.devices("two"), ["cuda"]);
    let (one, two) = (machine.losses("one"), machine.losses("two"));
    assert!(one.len() == 3 && one.iter().zip(&two).all(|(x, y)| (x - y).abs() <= 1e-5 * x.abs()), "{one:?} {two:?}");
    for file in FILES {
        let [one, two] = ["one", "two"].map(|run| without_statistics(&machine.checkpoint(run, 3, file)));
        let difference = difference(&one, &two);
        assert!(difference < 1e-4, "{file} differs by {difference:e}");
    }
    for (ranks, device) in [("", "cpu"), ("--devices 2", "cuda")] {
        let resumed = format!("two-then-{device}");
        copy_folder(&machine.path("two"), &machine.path(&resumed));
        fs::remove_dir_all(machine.path(&resumed).join("checkpoints/step-000003")).unwrap();
        let resume = format!("train --resume {resumed} --quiet {ranks}");
        match device {
            "cpu" => machine.run_on("cpu", &resume).ok(),
            _ => run(&machine, &resume).ok(),
        };
        for file in FILES {
            let [kept, resumed] = ["two", &resumed].map(|run| machine.checkpoint(run, 3, file));
            match device {
                "cuda" => assert!(kept == resumed, "{file}: resumed on the same GPUs it has other bits"),
                _ => {
                    let difference = difference(&without_statistics(&kept), &without_statistics(&resumed));
                    assert!(difference < 1e-4, "{file} differs by {difference:e}");
                }
            }
        }
    }
}

/// With dropout, whose numbers are those of a micro-batch wherever it runs, started by `launch` and as torchrun starts ranks; the user's
/// choice of NCCL's algorithm is left alone.
#[test]
fn a_bert_is_trained_by_ranks_of_any_launcher() {
    let Some(machine) = Machine::new("a_bert_is_trained_by_ranks_of_any_launcher") else { return };
    fs::write(machine.path("bert.toml"), BERT).unwrap();
    run(&machine, "train --recipe bert.toml --quiet --out one").ok();
    let told = machine.path("variables");
    let libraries = machine.mocks.display();
    let launch = format!(
        "launch -n 2 -- train --recipe bert.toml --quiet --out two --nccl-auto --device cuda --tuning off --gpu-libraries {libraries}"
    );
    ran(machine.command(&launch).env("MOCK_DEVICES", "2").env("MOCK_NCCL_VARIABLES", &told)).ok();
    assert_eq!(fs::read_to_string(&told).unwrap(), "NCCL_ALGO=\nNCCL_PROTO=\nNCCL_SOCKET_IFNAME=\n".repeat(2));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ranks = ["0", "1"].map(|rank| {
        let mut command = command(&machine, "train --recipe bert.toml --quiet --out three");
        command.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", "2").env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).env("NCCL_ALGO", "Tree");
        command.env("MOCK_NCCL_VARIABLES", machine.path(&format!("variables-{rank}")));
        command.stdout(Stdio::null()).spawn().unwrap()
    });
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    let own = fs::read_to_string(machine.path("variables-1")).unwrap();
    assert_eq!(own, "NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_SOCKET_IFNAME=\n");
    for file in FILES {
        let [one, two, three] = ["one", "two", "three"].map(|run| machine.checkpoint(run, 3, file));
        assert!(two == three, "{file}: two jobs of two ranks differ");
        let difference = difference(&one, &two);
        assert!(difference < 2e-4, "{file} differs by {difference:e}");
    }
}

/// Two ranks as processes of this test, each with variables of its own.
fn ranks(machine: &Machine, arguments: &str, variables: [&[(&str, &str)]; 2]) -> [Child; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut rank = 0;
    variables.map(|variables| {
        let mut command = command(machine, arguments);
        for name in ["RANK", "LOCAL_RANK"] {
            command.env(format!("BESSEMER_{name}"), rank.to_string());
        }
        command.env("BESSEMER_SIZE", "2").env("BESSEMER_LOCAL_SIZE", "2");
        command.env("BESSEMER_RENDEZVOUS", format!("127.0.0.1:{port}")).envs(variables.iter().copied());
        rank += 1;
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    })
}

/// What a rank says at its end, within a time, with its exit code.
fn end(mut rank: Child, within: Duration) -> (Option<i32>, String) {
    let begun = Instant::now();
    while rank.try_wait().unwrap().is_none() {
        if begun.elapsed() > within {
            rank.kill().unwrap();
            panic!("the rank does not end: {}", String::from_utf8_lossy(&rank.wait_with_output().unwrap().stderr));
        }
        sleep(Duration::from_millis(10));
    }
    let output = rank.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn steps(machine: &Machine, run: &str) -> usize {
    let events = fs::read_to_string(machine.path(run).join("events.jsonl")).unwrap_or_default();
    events.lines().filter(|line| line.contains("\"step_s\"")).count()
}

const LONG: &str = "train resnet20-cifar --data shapes --quiet --set train.batch_size=2 --set eval.batch_size=4 \
                    --set data.eval_samples=4 --set data.train_samples=400 --set schedule.warmup_epochs=0 \
                    --set data.image_size=16 --set data.eval_image_size=16 --set data.eval_resize=16 \
                    --set checkpoint.every_steps=100000 --set train.accumulation=2 --set schedule.kind=constant --steps 10000 --peer-timeout 60 --out long";

/// A rank that is killed, and one whose communicator tells of an error: the other ends with one line that says so, and keeps the last
/// whole step, from which the run goes on.
#[test]
fn a_rank_that_is_lost_ends_the_other_with_a_message() {
    let Some(machine) = Machine::new("a_rank_that_is_lost_ends_the_other_with_a_message") else { return };
    for (nr, error_at) in ["1000000", "30"].into_iter().enumerate() {
        let run = format!("long-{nr}");
        let long = LONG.replace("--out long", &format!("--out {run}"));
        let [mut first, mut second] = ranks(&machine, &long, [&[], &[("MOCK_NCCL_ERROR_AT", error_at)]]);
        let begun = Instant::now();
        while steps(&machine, &run) < 3 {
            assert!(begun.elapsed() < Duration::from_secs(300), "no steps are made");
            if first.try_wait().unwrap().is_some() && steps(&machine, &run) < 3 {
                let (code, said) = end(first, Duration::ZERO);
                panic!("rank 0 ends with {code:?} before it is to: {said}");
            }
            sleep(Duration::from_millis(10));
        }
        let within = Duration::from_secs(60);
        let error = match error_at {
            "30" => {
                // It makes some steps before.
                let (code, said) = end(second, Duration::from_secs(120));
                let expected =
                    "ncclCommGetAsyncError failed with code 6: remote process exited or there was a network error";
                assert!(code == Some(1) && said.lines().count() == 1 && said.contains(expected), "{code:?} {said}");
                "rank 1 (host "
            }
            _ => {
                second.kill().unwrap();
                second.wait().unwrap();
                "lost rank 1 (host "
            }
        };
        let begun = Instant::now();
        let (code, said) = end(first, within);
        assert!(begun.elapsed() < Duration::from_secs(30), "it ends after {:?}", begun.elapsed());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1 && said.contains(error), "{said}");
        let latest = fs::read_to_string(machine.path(&run).join("checkpoints/latest")).unwrap();
        let done = steps(&machine, &run);
        assert_eq!(latest.trim(), format!("step-{done:06}"), "the last whole step is kept");
        let more = format!("train --resume {run} --quiet --set train.steps={} --devices 2", done + 1);
        self::run(&machine, &more).ok();
        assert_eq!(steps(&machine, &run), done + 1);
    }
}

/// Each is one error with exit code 2, before anything is written.
#[test]
fn what_ranks_on_gpus_lack_is_said() {
    let Some(machine) = Machine::new("what_ranks_on_gpus_lack_is_said") else { return };
    let train = format!("{TRAIN} --steps 1 --set train.accumulation=4 --out run");
    let failed = run(&machine, &format!("{train} --devices 4"));
    failed.fails(2, &["the 4 ranks of this machine need a GPU each, and the driver sees 2"]);
    let some = machine.path("some");
    fs::create_dir(&some).unwrap();
    for library in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9"] {
        fs::copy(machine.mocks.join(library), some.join(library)).unwrap();
    }
    let without = format!("{train} --devices 2 --device cuda --gpu-libraries {}", some.display());
    let said = ran(machine.command(&without).env("MOCK_DEVICES", "2"));
    said.fails(
        2,
        &["cuda cannot be used by 2 ranks: libnccl.so (several GPUs) was not found", "install NCCL (package libnccl2"],
    );
    let one = format!("{train} --devices 2 --device cuda:1 --gpu-libraries {}", machine.mocks.display());
    ran(machine.command(&one).env("MOCK_DEVICES", "2")).fails(2, &["cuda:1 is one GPU, and there are 2 ranks"]);
    assert!(!machine.path("run").exists());
    let doctor = |libraries: &std::path::Path| {
        let words = format!("doctor --gpu-libraries {}", libraries.display());
        ran(machine.command(&words).env("MOCK_DEVICES", "2").env("PATH", "/nowhere")).ok().out
    };
    let said = doctor(machine.mocks);
    assert!(said.lines().any(|line| line.contains("ranks by NCCL") && line.contains("2.28.9")), "{said}");
    let said = doctor(&some);
    assert!(said.lines().any(|line| line.contains("ranks by NCCL") && line.contains("package libnccl2")), "{said}");
}

#[test]
fn steps_of_ranks_are_measured() {
    let Some(machine) = Machine::new("steps_of_ranks_are_measured") else { return };
    let bench = "bench train bert-tiny --sequence-length 8 --batch-size 2 --predictions 1 --warmup 1 --steps 1 --repeat 1 --quiet \
                 --scaling 1x1,1x2 --json";
    let result = run(&machine, bench).ok();
    let rows: Vec<serde_json::Value> = result.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["devices"] == 2 && row["throughput"].as_f64().unwrap() > 0.0), "{}", result.out);
}
