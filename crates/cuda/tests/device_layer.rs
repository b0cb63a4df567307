//! The device layer as it is, from finding the libraries to replaying a graph, over a mock of the driver.

mod common;

use bessemer_cuda::GpuError;
use bessemer_cuda::cubins::CubinCache;
use bessemer_cuda::driver::{Block, Context, Driver, Function};
use bessemer_cuda::kgen::{Kernel, Parameter};
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_cuda::nvrtc::Nvrtc;
use bessemer_ir::DType;
use common::{Knobs, mock_or_skip};
use std::path::Path;
use std::time::Duration;

const N: usize = 1000;

fn libraries(folder: &Path) -> Libraries {
    Libraries::find(Places { named: vec![folder.to_owned()], ..Places::default() })
}

fn context(folder: &Path) -> Result<Context, GpuError> {
    Context::new(&Driver::open(&libraries(folder).require(Wanted::Driver)?.path)?, 0)
}

/// `y = x * factor + offset` for `N` numbers.
fn scale(factor: u32, offset: u32) -> Kernel {
    let parameters = vec![
        Parameter::input("x", DType::F32, N),
        Parameter::output("y", DType::F32, N),
        Parameter::Number { name: "factor".into(), value: factor },
        Parameter::Number { name: "offset".into(), value: offset },
    ];
    let body = format!(
        "    unsigned i = blockIdx.x * 128 + threadIdx.x;\n    if (i < {N}) y[i] = x[i] * (float)factor + (float)offset;\n"
    );
    Kernel::new("scale", parameters, [N.div_ceil(128) as u32, 1, 1], [128, 1, 1], &body)
}

fn load(context: &Context, folder: &Path, kernel: &Kernel) -> Result<Function, GpuError> {
    let nvrtc = Nvrtc::open(&libraries(folder))?;
    let cache = CubinCache::new(folder.join("cubins"));
    let (compiled, _) = cache.get(&nvrtc, &kernel.name, &kernel.text, &context.info().architecture())?;
    context.module(&compiled.cubin)?.function(kernel)
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Everything once: eager work on two streams, a timer, a captured graph that forks and joins, replayed with new input.
/// Returns the results of the eager launch and of both replays.
fn everything(folder: &Path) -> Result<[Vec<f32>; 3], GpuError> {
    let context = context(folder)?;
    let (free, total) = context.memory()?;
    assert!(free <= total);
    let [function, larger] = [(2, 5), (3, 1)].map(|(factor, offset)| load(&context, folder, &scale(factor, offset)));
    let (function, larger) = (function?, larger?);
    assert_eq!(function.resources()?, (32, 0));
    let arena = context.arena(3 * 4096)?;
    let [x, y, z] = [0, 4096, 8192].map(|offset| arena.block(offset, N * 4));
    let (x, y, z) = (x?, y?, z?);
    let (stream, other) = (context.stream()?, context.stream()?);
    let (forked, joined) = (context.event()?, context.event()?);

    let input: Vec<f32> = (0..N).map(|i| i as f32).collect();
    stream.upload(&bytes(&input), &x)?;
    let time = context.timer()?.time(&stream, || stream.launch(&function, &[x.clone(), y.clone()]))?;
    assert!(time < Duration::from_secs(60));
    let mut result = vec![0; N * 4];
    stream.download(&y, &mut result)?;
    let eager = numbers(&result);

    let (mut source, mut target) = (context.pinned(N * 4)?, context.pinned(N * 4)?);
    let graph = stream.capture(|| {
        stream.copy_in(&source, &x)?;
        stream.record(&forked)?;
        other.wait(&forked)?;
        other.launch(&larger, &[x.clone(), y.clone()])?;
        other.record(&joined)?;
        stream.fill(&z, 0)?;
        stream.wait(&joined)?;
        stream.copy(&y, &z)?;
        stream.copy_out(&z, &mut target)
    })?;
    assert_eq!(graph.nodes(), 5);
    let mut replay = |value: f32| {
        source.write(0, &bytes(&[value; N]))?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        target.read(0, &mut result)?;
        Ok::<_, GpuError>(numbers(&result))
    };
    let replays = [replay(1.0)?, replay(5.0)?];
    context.synchronize()?;
    let [first, second] = replays;
    Ok([eager, first, second])
}

#[test]
fn eager_and_captured_work_give_the_right_numbers_and_leak_nothing() {
    let Some(folder) = mock_or_skip("device layer") else { return };
    let knobs = Knobs::open(folder);
    let [eager, first, second] = everything(folder).unwrap();
    assert_eq!(eager, (0..N).map(|i| 2.0 * i as f32 + 5.0).collect::<Vec<_>>());
    assert_eq!((first, second), (vec![4.0; N], vec![16.0; N]));
    assert_eq!(knobs.ledger(), []);
    assert_eq!((knobs.get("launches"), knobs.get("damaged")), (2, 0));
}

/// Work that waits in its stream, and the nodes of a graph, are done in random orders of those that events allow.
#[test]
fn orders_that_events_allow_change_nothing() {
    let Some(folder) = mock_or_skip("orders that events allow") else { return };
    let knobs = Knobs::open(folder);
    let expected = everything(folder).unwrap();
    for seed in 1..=200 {
        knobs.set("seed", seed);
        let outcome = everything(folder);
        knobs.set("seed", 0);
        assert!(outcome.unwrap() == expected, "seed {seed}");
    }
}

/// Each call of the driver in turn returns a code that no one knows.
#[test]
fn every_call_may_fail_and_nothing_leaks() {
    let Some(folder) = mock_or_skip("error injection") else { return };
    let knobs = Knobs::open(folder);
    knobs.set("reset", 1);
    everything(folder).unwrap();
    let calls = knobs.get("calls");
    assert!(calls > 100, "{calls}");
    for failing in 1..=calls {
        let (call, result) = knobs.failing(failing, 123_456, || everything(folder));
        let is_release = ["Destroy", "Free", "Unload", "Release"].iter().any(|word| call.contains(word));
        // The last releases of all have nobody to report an error to.
        let unreported = is_release || call == "cuCtxSetCurrent" || call.contains("Synchronize");
        match result {
            Err(error) => {
                let (message, named) = (error.to_string(), call.trim_end_matches("_v2").trim_end_matches("WithFlags"));
                assert!(
                    message.starts_with(&format!("{named} failed with code 123456: a code that")),
                    "{call}: {message}"
                );
            }
            Ok(_) => assert!(unreported, "{call} (call {failing}) was not noticed"),
        }
        let leaked = knobs.ledger();
        assert!(leaked.len() <= usize::from(is_release), "{call} (call {failing}): {leaked:?}");
    }
    knobs.set("reset", 1);
}

#[test]
fn errors_in_releasing_are_kept() {
    let Some(folder) = mock_or_skip("errors in releasing") else { return };
    let knobs = Knobs::open(folder);
    let context = context(folder).unwrap();
    let arena = context.arena(256).unwrap();
    knobs.set("fail_code", 1);
    knobs.set("fail_at", knobs.get("calls") + 2);
    drop(arena);
    context.synchronize().unwrap();
    let message = context.take_release_error().unwrap().to_string();
    assert_eq!(message, "cuMemFree failed with code 1: CUDA_ERROR_INVALID_VALUE, invalid argument");
    assert!(context.take_release_error().is_none());
    knobs.set("reset", 1);
}

#[test]
fn a_failed_capture_leaves_the_stream_usable() {
    let Some(folder) = mock_or_skip("failed capture") else { return };
    let knobs = Knobs::open(folder);
    {
        let context = context(folder).unwrap();
        let (stream, other, event) = (context.stream().unwrap(), context.stream().unwrap(), context.event().unwrap());
        let arena = context.arena(512).unwrap();
        let block = arena.block(0, 512).unwrap();
        let fails = |work: &dyn Fn() -> Result<(), GpuError>| stream.capture(work).err().unwrap().to_string();
        assert!(fails(&|| stream.upload(&[0; 3], &block)).contains("copying 3 bytes into 512"));
        assert!(fails(&|| context.arena(256).map(drop)).contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
        assert!(fails(&|| stream.capture(|| Ok(())).map(drop)).contains("capturing a graph already"));
        let unjoined = fails(&|| {
            stream.record(&event)?;
            other.wait(&event)?;
            other.fill(&block, 1)
        });
        assert!(unjoined.contains("CUDA_ERROR_STREAM_CAPTURE_UNJOINED"), "{unjoined}");
        stream.fill(&block, 7).unwrap();
        let mut read = [0; 512];
        stream.download(&block, &mut read).unwrap();
        assert_eq!(read, [7; 512]);
    }
    assert_eq!(knobs.ledger(), []);
}

#[test]
fn a_graph_keeps_what_it_uses() {
    let Some(folder) = mock_or_skip("graphs keep memory") else { return };
    let knobs = Knobs::open(folder);
    {
        let context = context(folder).unwrap();
        let stream = context.stream().unwrap();
        let graph = {
            let function = load(&context, folder, &scale(1, 0)).unwrap();
            let arena = context.arena(8192).unwrap();
            let (x, y) = (arena.block(0, 4096).unwrap(), arena.block(4096, 4096).unwrap());
            let source = context.pinned(4096).unwrap();
            let arguments = [x.clone(), y.clone()];
            stream.capture(|| stream.copy_in(&source, &x).and_then(|()| stream.launch(&function, &arguments))).unwrap()
        };
        assert_eq!((knobs.get("memory"), knobs.get("host"), knobs.get("modules")), (1, 1, 1));
        graph.launch(&stream).unwrap();
        drop(graph);
        assert_eq!((knobs.get("memory"), knobs.get("host"), knobs.get("modules")), (0, 0, 0));
    }
    assert_eq!(knobs.ledger(), []);
}

#[test]
fn wrong_arguments_never_reach_the_driver() {
    let Some(folder) = mock_or_skip("arguments") else { return };
    let context = context(folder).unwrap();
    let (stream, arena) = (context.stream().unwrap(), context.arena(16384).unwrap());
    let function = load(&context, folder, &scale(1, 0)).unwrap();
    let block = |offset, bytes| arena.block(offset, bytes).unwrap();
    let (x, y, small, odd) = (block(0, 4096), block(4096, 4096), block(0, 3996), block(8, 4096));
    let refused = |blocks: &[Block], parts: &[&str]| {
        let message = stream.launch(&function, blocks).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    };
    refused(std::slice::from_ref(&x), &["`scale`", "takes 2 blocks of memory, 1 are given"]);
    refused(&[x.clone(), small.clone()], &["`y` takes 4000 bytes, 3996 are given"]);
    refused(&[odd, y], &["`x` is not aligned to 16 bytes"]);
    assert!(
        arena.block(16000, 385).err().unwrap().to_string().contains("bytes 16000 to 16385 lie outside of the arena")
    );
    assert!(x.part(4000, 97).is_err() && x.part(4000, 96).is_ok() && arena.block(usize::MAX, 2).is_err());
    assert!(stream.copy(&x, &small).unwrap_err().to_string().contains("copying 4096 bytes into 3996"));
    let mut pinned = context.pinned(16).unwrap();
    assert!(
        pinned.write(8, &[0; 9]).is_err() && pinned.write(8, &[0; 8]).is_ok() && pinned.read(16, &mut [0]).is_err()
    );
}

/// The mock itself finds pointers outside of memory: a kernel that reads through one is not run.
#[test]
fn pointers_outside_of_the_arena_are_found() {
    let Some(folder) = mock_or_skip("stray pointers") else { return };
    let knobs = Knobs::open(folder);
    let context = context(folder).unwrap();
    let (stream, function) = (context.stream().unwrap(), load(&context, folder, &scale(1, 0)).unwrap());
    let arena = context.arena(8192).unwrap();
    let (x, y) = (arena.block(0, 4096).unwrap(), arena.block(4096, 4096).unwrap());
    let arguments = [x.clone(), y.clone()];
    let graph = stream.capture(|| stream.launch(&function, &arguments)).unwrap();
    graph.launch(&stream).unwrap();
    knobs.set("forget", 1);
    let message = graph.launch(&stream).unwrap_err().to_string();
    assert!(message.contains("cuGraphLaunch") && message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{message}");
    knobs.set("reset", 1);
}

#[test]
fn what_cannot_be_had_is_named() {
    let Some(folder) = mock_or_skip("what cannot be had") else { return };
    let driver = Driver::open(&folder.join("libcuda.so.1")).unwrap();
    let message = Context::new(&driver, 3).err().unwrap().to_string();
    assert_eq!(message, "there is no GPU number 3; the driver sees 1");
    let context = Context::new(&driver, 0).unwrap();
    let message = context.arena(1 << 40).err().unwrap().to_string();
    assert_eq!(message, "cuMemAlloc failed with code 2: CUDA_ERROR_OUT_OF_MEMORY, out of memory");
    assert!(context.module(b"no cubin at all").err().unwrap().to_string().contains("CUDA_ERROR_INVALID_IMAGE"));
    let broken = Kernel::new("broken", Vec::new(), [1; 3], [32, 1, 1], "    this is no program;\n");
    let message = load(&context, folder, &broken).err().unwrap().to_string();
    assert!(message.starts_with("compiling `broken` for sm_90a failed:") && message.contains("error"), "{message}");
    let other = Kernel { name: "absent".to_owned(), ..scale(1, 0) };
    let cubin = Nvrtc::open(&libraries(folder)).unwrap().compile("scale", &scale(1, 0).text, "sm_90a").unwrap().cubin;
    let message = context.module(&cubin).unwrap().function(&other).err().unwrap().to_string();
    assert!(message.contains("cuModuleGetFunction") && message.contains("named symbol not found"), "{message}");
}

#[test]
fn compiled_kernels_are_found_on_disk() {
    let Some(folder) = mock_or_skip("cache of kernels") else { return };
    let cache_folder = tempfile::tempdir().unwrap();
    let nvrtc = Nvrtc::open(&libraries(folder)).unwrap();
    let cache = CubinCache::new(cache_folder.path().join("deeper"));
    let kernel = scale(1, 0);
    let get = |architecture| cache.get(&nvrtc, "scale", &kernel.text, architecture).unwrap();
    let (made, first) = (get("sm_90a"), get("sm_90a"));
    assert!(!made.1 && first.1 && made.0 == first.0);
    assert!(!get("sm_80").1 && get("sm_80").1);
    let files = || std::fs::read_dir(cache_folder.path().join("deeper")).unwrap().map(|file| file.unwrap().path());
    assert_eq!(files().count(), 4);
    assert!(cache.take_failure().is_none());
    let whole = made.0.cubin.clone();
    for damaged in [&whole[..0], &whole[..40], &whole[..whole.len() / 2], &whole[..whole.len() - 1], b"no image"] {
        let images = files().filter(|path| path.extension().is_some_and(|extension| extension == "cubin"));
        images.for_each(|path| std::fs::write(path, damaged).unwrap());
        assert!(!get("sm_90a").1 && get("sm_90a").1, "{} bytes are compiled again", damaged.len());
    }
}

#[test]
fn compiled_kernels_are_used_where_they_cannot_be_kept() {
    let Some(folder) = mock_or_skip("a cache that cannot be written") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let nvrtc = Nvrtc::open(&libraries(folder)).unwrap();
    let cache = CubinCache::new(file.join("deeper"));
    for _ in 0..2 {
        assert!(!cache.get(&nvrtc, "scale", &scale(1, 0).text, "sm_90a").unwrap().1);
    }
    let message = cache.take_failure().unwrap().to_string();
    assert!(message.starts_with(&format!("{}: ", file.join("deeper").display())), "{message}");
    assert!(cache.take_failure().is_none());
}

#[test]
fn libraries_that_are_none_are_refused_without_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so.1");
    std::fs::write(&path, "no library").unwrap();
    let message = Driver::open(&path).err().unwrap().to_string();
    assert!(message.contains("libcuda.so.1 cannot be opened: ") && !message.contains('\n'), "{message}");
    let Some(mock) = mock_or_skip("a library of another name") else { return };
    std::fs::copy(mock.join("libnvrtc.so.13"), &path).unwrap();
    let message = Driver::open(&path).err().unwrap().to_string();
    assert!(message.contains("has no function `cuInit`"), "{message}");
}
