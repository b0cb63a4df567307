//! Passes keep the meaning of a step, and plans keep live values apart.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::graph::Node;
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::fusion::{Fusion, Instr};
use bessemer_ir::ops::index::{ArgMax, OneHot};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{Binary, BinaryKind, UnaryKind};
use bessemer_ir::ops::pool::MaxPool2d;
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::Constant;
use bessemer_ir::ops::{Product, Scalar};
use bessemer_ir::passes::fuse::{Reason, near_misses};
use bessemer_ir::passes::recompute::Recompute;
use bessemer_ir::passes::{CompileOptions, compile, pass_names, run_passes};
use bessemer_ir::plan::{KernelCall, Location, NullTarget, OnceCall, Plan, print_graph, print_memory, print_plan};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::{ChainRules, ColumnRules, Rules};
use bessemer_ir::run::StateLayout;
use bessemer_ir::{DType, Graph, GraphError, NodeId, Op, Role, TensorType, Value, philox};

struct Net {
    graph: Graph,
    parameters: Vec<Value>,
}

impl Net {
    fn parameter(&mut self, name: &str, shape: impl Into<bessemer_ir::Shape>) -> Result<Value, GraphError> {
        let value = self.graph.input(name, Role::Parameter, TensorType::f32(shape))?;
        self.parameters.push(value);
        Ok(value)
    }

    fn conv_norm(
        &mut self,
        name: &str,
        x: Value,
        cout: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<Value, GraphError> {
        let cin = self.graph.shape(x).cols();
        let w = self.parameter(&format!("{name}.weight"), [kernel, kernel, cin, cout])?;
        let gamma = self.parameter(&format!("{name}.gamma"), [cout])?;
        let beta = self.parameter(&format!("{name}.beta"), [cout])?;
        let running = self.graph.input(&format!("{name}.mean"), Role::State, TensorType::f32([cout]))?;
        let pad = [[kernel / 2; 2]; 2];
        let g = &mut self.graph;
        let y = g.push1(Conv2d::new([stride, stride], pad), &[x, w])?;
        let (mean, var) = g.moments(y, &[0, 1, 2])?;
        let old = g.mul_scalar(running, 0.9)?;
        let new = g.mul_scalar(mean, 0.1)?;
        let next = g.add(old, new)?;
        g.update(running, next)?;
        let var = g.add_scalar(var, 1e-5)?;
        let rstd = g.rsqrt(var)?;
        let scale = g.mul(gamma, rstd)?;
        let centred = g.sub(y, mean)?;
        let scaled = g.mul(centred, scale)?;
        g.add(scaled, beta)
    }
}

/// A residual network with two blocks, a loss, its gradients and momentum updates.
fn residual_step() -> Result<Graph, GraphError> {
    residual_step_of(Batches::One)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Batches {
    One,
    /// The gradients are sums over the micro-batches of a step; statistics are updated in each.
    Several,
}

fn residual_step_of(batches: Batches) -> Result<Graph, GraphError> {
    let mut net = Net { graph: Graph::new(), parameters: Vec::new() };
    let images = net.graph.input("images", Role::Feed, TensorType::new(DType::U8, [2, 8, 8, 3]))?;
    let target = net.graph.input("target", Role::Feed, TensorType::f32([2, 6]))?;
    let x = net.graph.cast(images, DType::F32)?;
    let x = net.graph.mul_scalar(x, 1.0 / 255.0)?;
    let x = net.conv_norm("stem", x, 4, 3, 1)?;
    let x = net.graph.relu(x)?;
    let x = net.graph.push1(MaxPool2d { window: [3, 3], stride: [2, 2], pad: [[1, 1], [1, 1]] }, &[x])?;
    let mut x = x;
    for block in ["a", "b"] {
        let y = net.conv_norm(&format!("{block}.1"), x, 16, 1, 1)?;
        let y = net.graph.relu(y)?;
        let y = net.conv_norm(&format!("{block}.2"), y, 6, 3, 1)?;
        let shortcut = if block == "a" { net.conv_norm("a.shortcut", x, 6, 1, 1)? } else { x };
        let sum = net.graph.add(y, shortcut)?;
        x = net.graph.relu(sum)?;
    }
    let pooled = net.graph.mean(x, &[1, 2])?;
    let log = net.graph.log_softmax(pooled)?;
    let product = net.graph.mul(log, target)?;
    let total = net.graph.sum(product, &[0, 1])?;
    let loss = net.graph.mul_scalar(total, -0.5)?;
    let mut grads = gradients(&mut net.graph, loss, &net.parameters)?;
    let g = &mut net.graph;
    g.output("loss", loss);
    if batches == Batches::Several {
        g.update_all_each_micro_batch();
        let fresh = g.input("fresh", Role::State, TensorType::f32([]))?;
        let zero = g.constant(DType::F32, [], 0.0)?;
        let is_fresh = g.binary(BinaryKind::Eq, fresh, zero)?;
        for (index, grad) in grads.iter_mut().enumerate() {
            let sum = g.input(&format!("sum.{index}"), Role::State, g.ty(*grad).clone())?;
            let before = g.select(is_fresh, zero, sum)?;
            *grad = g.add(before, *grad)?;
            g.update_each_micro_batch(sum, *grad)?;
        }
        let one = g.constant(DType::F32, [], 1.0)?;
        let next = g.select(is_fresh, one, zero)?;
        g.update_each_micro_batch(fresh, next)?;
    }
    for (index, (&parameter, &grad)) in net.parameters.iter().zip(&grads).enumerate() {
        let velocity = g.input(&format!("velocity.{index}"), Role::State, g.ty(parameter).clone())?;
        let old = g.mul_scalar(velocity, 0.9)?;
        let new = g.add(old, grad)?;
        let step = g.mul_scalar(new, 0.1)?;
        let moved = g.sub(parameter, step)?;
        g.update(velocity, new)?;
        g.update(parameter, moved)?;
    }
    Ok(net.graph)
}

fn run(graph: &Graph, steps: usize) -> Vec<(String, Vec<f64>)> {
    let mut interpreter = Interpreter::new(graph);
    for (index, (_, input)) in graph.inputs().enumerate() {
        let sample = |i: usize| f64::from(philox::normal(3, 0, index as u32, i as u64));
        let data: Vec<f64> = (0..input.ty.shape.elements())
            .map(|i| match (input.ty.dtype, input.role) {
                (DType::U8, _) => (sample(i).abs() * 80.0).floor(),
                (_, Role::State) => 0.0,
                _ => sample(i) * 0.5,
            })
            .collect();
        interpreter.set(&input.name, &data);
    }
    for _ in 0..steps {
        interpreter.accumulate();
        interpreter.run();
    }
    let mut results: Vec<(String, Vec<f64>)> =
        graph.outputs().iter().map(|(name, _)| (name.clone(), interpreter.output(name).data.clone())).collect();
    results.extend(graph.inputs().map(|(_, i)| (i.name.clone(), interpreter.input(&i.name).data.clone())));
    results
}

/// Checks that two graphs compute the same, in `f64`, which does not round to 16 bits.
fn assert_same(what: &str, graph: &Graph, rewritten: &Graph, steps: usize) {
    let (expected, actual) = (run(graph, steps), run(rewritten, steps));
    assert_eq!(expected.len(), actual.len(), "{what}");
    for ((name, a), (other, b)) in expected.iter().zip(&actual) {
        assert_eq!(name, other);
        for (x, y) in a.iter().zip(b) {
            assert!((x - y).abs() <= 1e-9 * (1.0 + x.abs()), "{what}: {name}: {x} {y}");
        }
    }
}

#[test]
fn passes_keep_the_meaning() {
    passes_keep_the_meaning_of(&residual_step().unwrap());
}

#[test]
fn passes_keep_the_meaning_of_micro_batches() {
    passes_keep_the_meaning_of(&residual_step_of(Batches::Several).unwrap());
}

fn passes_keep_the_meaning_of(graph: &Graph) {
    let plain = CompileOptions::default();
    let without = |pass: &str| CompileOptions { disabled: vec![pass.to_string()], ..CompileOptions::default() };
    let variants = [
        plain.clone(),
        CompileOptions { fuse: false, ..plain.clone() },
        without("simplify"),
        without("schedule"),
        CompileOptions { precision: DType::Bf16, ..plain.clone() },
        CompileOptions { precision: DType::F16, fuse: false, ..plain.clone() },
        CompileOptions { recompute: Recompute::Pointwise, ..plain.clone() },
        CompileOptions { recompute: Recompute::Blocks, ..plain.clone() },
        CompileOptions { recompute: Recompute::Blocks, precision: DType::Bf16, ..plain },
    ];
    for options in &variants {
        for last in pass_names() {
            let rewritten = run_passes(graph, &Rules::DEFAULT, options, Some(last)).unwrap();
            assert_same(&format!("{options:?} after {last}"), graph, &rewritten, 2);
        }
    }
}

/// A convolution with a norm of running statistics and a bias, and a matrix product with a scale, as they are when a model is
/// only run.
fn inference() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([2, 5, 5, 3]))?;
    let w = g.input("conv.weight", Role::Parameter, TensorType::f32([3, 3, 3, 4]))?;
    let vectors = ["mean", "gamma", "var", "beta"];
    let mut values = Vec::new();
    for name in vectors {
        values.push(g.input(name, Role::Parameter, TensorType::f32([4]))?);
    }
    let y = g.push1(Conv2d::new([1, 1], [[1; 2]; 2]), &[x, w])?;
    let positive = g.square(values[2])?;
    let stable = g.add_scalar(positive, 0.1)?;
    let rstd = g.rsqrt(stable)?;
    let scale = g.mul(values[1], rstd)?;
    let centred = g.sub(y, values[0])?;
    let scaled = g.mul(centred, scale)?;
    let y = g.add(scaled, values[3])?;
    let y = g.relu(y)?;
    let pooled = g.mean(y, &[1, 2])?;
    let head = g.input("head", Role::Parameter, TensorType::f32([4, 6]))?;
    let z = g.push1(Matmul { trans_a: false, trans_b: false }, &[pooled, head])?;
    let z = g.mul_scalar(z, 0.25)?;
    g.output("z", z);
    Ok(g)
}

#[test]
fn norms_of_fixed_statistics_fold_into_weights() {
    let graph = inference().unwrap();
    let folded = run_passes(&graph, &Rules::DEFAULT, &CompileOptions::default(), Some("fold")).unwrap();
    assert_same("fold", &graph, &folded, 1);
    let conv = folded.nodes().iter().find(|n| matches!(n.op, Op::Conv2d(_))).expect("the convolution stays");
    assert!(matches!(folded.node(conv.inputs[1].node).op, Op::Binary(_)), "{}", print_graph(&folded));
    let scales_images = |n: &Node| {
        matches!(n.op, Op::Binary(Binary(BinaryKind::Mul))) && n.inputs.iter().any(|v| folded.shape(*v).rank() == 4)
    };
    let scaled: Vec<NodeId> = folded.ids().filter(|&id| scales_images(folded.node(id))).collect();
    assert_eq!(scaled, [conv.inputs[1].node], "the weights alone are scaled:\n{}", print_graph(&folded));
}

#[test]
fn what_is_fixed_is_computed_before_the_first_step() {
    let graph = inference().unwrap();
    let plan = compile(&graph, &NullTarget, &CompileOptions::default()).unwrap();
    let once = plan.once_calls.iter().filter(|p| matches!(p, OnceCall::Run(_))).count();
    assert!(once >= 2, "the scaled weights and shifts: {}", print_plan(&plan));
    assert!(plan.calls.len() <= 4, "{}", print_plan(&plan));
    // A step that replaces its parameters has nothing to prepare of them.
    let plan = compile(&residual_step().unwrap(), &NullTarget, &CompileOptions::default()).unwrap();
    let parameters =
        |call: &KernelCall| plan.graph.node(call.node).inputs.iter().any(|v| plan.invariant.is_invariant(v.node));
    assert!(plan.once_calls.iter().all(|p| !matches!(p, OnceCall::Run(step) if !parameters(step))));
}

#[test]
fn sixteen_bits_halve_the_activations() {
    let graph = residual_step().unwrap();
    let options = CompileOptions { precision: DType::Bf16, ..CompileOptions::default() };
    let lowered = run_passes(&graph, &Rules::DEFAULT, &options, None).unwrap();
    for node in lowered.nodes() {
        let op = match &node.op {
            Op::Fusion(fusion) => fusion.producer.as_deref(),
            op => Some(op),
        };
        if matches!(op, Some(Op::Conv2d(_) | Op::Conv2dDataGrad(_) | Op::Conv2dWeightGrad(_))) {
            let types: Vec<DType> = node.inputs[..2].iter().map(|&v| lowered.dtype(v)).collect();
            assert_eq!(types, [DType::Bf16; 2], "{}", node.op);
        }
        let is_image = |ty: &&TensorType| ty.shape.rank() == 4 && ty.shape[1] * ty.shape[2] > 1 && ty.shape[0] == 2;
        for ty in node.outputs.iter().filter(is_image) {
            assert_ne!(ty.dtype, DType::F32, "images cross memory in 16 bits, not as those of {}", node.op);
        }
    }
    for (state, new) in lowered.updates() {
        assert_eq!((lowered.dtype(*state), lowered.dtype(*new)), (DType::F32, DType::F32), "masters and momenta");
    }
}

/// What reads the result of a convolution, or of one of its gradients, and whether it reads that rounded to the operands' type.
fn readers_of_convolutions(graph: &Graph) -> Vec<(String, bool)> {
    let rounds = |fusion: &Fusion, what: Instr, ty: DType| {
        let is_it = |reg: u16| fusion.program[usize::from(reg)] == what;
        fusion.program.iter().all(|instr| match instr {
            Instr::Cast(to, reg) if is_it(*reg) => *to == ty,
            instr => !instr.operands().any(is_it),
        }) && !fusion.outputs.iter().any(|output| is_it(output.reg()))
    };
    let consumers = graph.consumers();
    let mut readers = Vec::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let fusion = node.op.as_fusion();
        let product = fusion.map_or(Some(&node.op), |fusion| fusion.producer.as_deref()).and_then(Op::product);
        if matches!(product, None | Some(Product::Matmul(_))) {
            continue;
        }
        let ty = graph.dtype(node.inputs[0]);
        assert_ne!(ty, DType::F32, "{}", node.op);
        if let Some(fusion) = fusion {
            readers.push((node.op.to_string(), rounds(fusion, Instr::Producer, ty)));
            continue;
        }
        assert!(graph.roots().all(|v| v.node != id), "{} is no result", node.op);
        for &reader in &consumers[id.index()] {
            let reader = graph.node(reader);
            let is_rounded = match reader.op.as_fusion() {
                _ if node.outputs[0].dtype == ty => true,
                Some(fusion) => {
                    let loads = (0..).zip(&reader.inputs[fusion.producer_inputs()..]).filter(|(_, v)| v.node == id);
                    loads.map(|(load, _)| load).all(|load| rounds(fusion, Instr::Load(load), ty))
                }
                None => reader.op.cast_target() == Some(ty),
            };
            readers.push((format!("{} read by {}", node.op, reader.op), is_rounded));
        }
    }
    readers
}

#[test]
fn convolutions_are_rounded_where_kernels_give_16_bits() {
    let graph = residual_step_of(Batches::Several).unwrap();
    let giving = Rules { products_give_16_bits: true, ..Rules::DEFAULT };
    for precision in [DType::Bf16, DType::F16] {
        for fuse in [true, false] {
            let options = CompileOptions { precision, fuse, ..CompileOptions::default() };
            let lowered = |rules| run_passes(&graph, rules, &options, None).unwrap();
            let rounded = lowered(&giving);
            let readers = readers_of_convolutions(&rounded);
            assert!(readers.len() >= 17, "six convolutions, five gradients of data, six of weights: {readers:?}");
            for (reader, is_rounded) in readers {
                assert!(is_rounded, "{precision}: {reader}");
            }
            assert_same("rounded convolutions", &graph, &rounded, 2);
            assert!(readers_of_convolutions(&lowered(&Rules::DEFAULT)).iter().any(|(_, is_rounded)| !is_rounded));
        }
    }
}

/// Two dense layers with a function between them; with `norm`, the mean of each row of the first layer is taken off.
fn two_layers(norm: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([6, 8]))?;
    let layer = |g: &mut Graph, x: Value, name: &str| {
        let w = g.input(&format!("{name}.weight"), Role::Parameter, TensorType::f32([8, 8]))?;
        let bias = g.input(&format!("{name}.bias"), Role::Parameter, TensorType::f32([8]))?;
        let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])?;
        g.add(y, bias)
    };
    let mut y = layer(&mut g, x, "first")?;
    if norm {
        let sum = g.sum(y, &[1])?;
        let mean = g.mul_scalar(sum, 1.0 / 8.0)?;
        let mean = g.reshape(mean, [6, 1])?;
        y = g.sub(y, mean)?;
    }
    let y = g.relu(y)?;
    let y = layer(&mut g, y, "second")?;
    g.output("y", y);
    Ok(g)
}

/// Where the rules say so, a product is rounded behind its bias, unless whole rows of the sum are reduced; without rules, or there,
/// before it.
#[test]
fn biases_are_added_before_rounding_where_rules_say_so() {
    let adding = Rules { products_give_16_bits: true, biases_before_rounding: true, ..Rules::DEFAULT };
    let options = CompileOptions { precision: DType::Bf16, ..CompileOptions::default() };
    for (rules, norm, is_behind) in [(&adding, false, true), (&adding, true, false), (&Rules::DEFAULT, false, false)] {
        let graph = two_layers(norm).unwrap();
        let rounded = run_passes(&graph, rules, &options, None).unwrap();
        let text = print_graph(&rounded);
        assert_eq!(text.contains("producer; in0[col]; add r0 r1; bf16 r2"), is_behind, "norm {norm}:\n{text}");
        assert_same("a bias before rounding", &graph, &rounded, 2);
    }
}

/// A loss of words, with its gradients and a step; `sampled` takes words by other numbers beside, as a generator does.
fn words_step(sampled: bool) -> Result<Graph, GraphError> {
    const WORDS: usize = 10;
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([6, 8]))?;
    let noise = g.input("noise", Role::Feed, TensorType::f32([6, WORDS]))?;
    let layer = g.input("layer", Role::Parameter, TensorType::f32([8, 8]))?;
    let words = g.input("words", Role::Parameter, TensorType::f32([WORDS, 8]))?;
    let bias = g.input("bias", Role::Parameter, TensorType::f32([WORDS]))?;
    // The last one is no word.
    let labels = [0, 3, 9, 9, 1, 11].map(|label| Scalar(f64::from(label)));
    let labels = g.push1(Constant { dtype: DType::I32, shape: [6].into(), data: labels.to_vec() }, &[])?;
    let hidden = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, layer])?;
    let y = g.push1(Matmul { trans_a: false, trans_b: true }, &[hidden, words])?;
    let y = g.add(y, bias)?;
    let log = g.log_softmax(y)?;
    let one_hot = g.push1(OneHot { depth: WORDS }, &[labels])?;
    let own = g.mul(one_hot, log)?;
    let by_row = g.sum(own, &[1])?;
    let total = g.sum(by_row, &[0])?;
    let loss = g.mul_scalar(total, -0.25)?;
    let largest = g.reduce(ReduceKind::Max, y, &[1], true)?;
    g.output("loss", loss);
    g.output("largest", largest);
    if sampled {
        let sum = g.add(y, noise)?;
        let drawn = g.push1(ArgMax, &[sum])?;
        g.output("drawn", drawn);
    }
    let parameters = [layer, words, bias];
    let grads = gradients(&mut g, loss, &parameters)?;
    for (parameter, grad) in parameters.into_iter().zip(grads) {
        let moved = g.sub(parameter, grad)?;
        g.update(parameter, moved)?;
    }
    Ok(g)
}

#[test]
fn products_get_columns_that_change_nothing() {
    let columns = |multiple, least| Rules { columns: Some(ColumnRules { multiple, least }), ..Rules::DEFAULT };
    for (sampled, precision) in [(false, DType::F32), (true, DType::F32), (false, DType::Bf16)] {
        let graph = words_step(sampled).unwrap();
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let passed = |rules: &Rules, last| run_passes(&graph, rules, &options, last).unwrap();
        let wide = passed(&columns(8, 9), None);
        assert_same("wide products", &graph, &wide, 3);
        let shapes = |graph: &Graph| -> Vec<Vec<usize>> {
            let is_product = |node: &&Node| node.op.product().is_some() || matches!(node.op, Op::Matmul(_));
            let found = graph.nodes().iter().filter(is_product).map(|node| node.outputs[0].shape.to_vec());
            found.collect()
        };
        let after = passed(&columns(8, 9), Some("widen"));
        assert_same("wide products before they are fused", &graph, &after, 3);
        assert!(shapes(&after).contains(&vec![6, 16]) && shapes(&after).contains(&vec![16, 8]), "{:?}", shapes(&after));
        let cut = |graph: &Graph| {
            let is_copy = |node: &&Node| matches!(node.op, Op::Slice(_)) && *node.outputs[0].shape == [6, 10];
            graph.nodes().iter().filter(is_copy).count()
        };
        assert_eq!(
            cut(&after),
            usize::from(sampled),
            "a matrix is copied where numbers of its own shape are read with it"
        );
        for unchanged in [columns(8, 11), columns(5, 9)] {
            assert_eq!(print_graph(&passed(&unchanged, None)), print_graph(&passed(&Rules::DEFAULT, None)));
        }
    }
}

/// A product whose result leaves the step would be copied for its sake.
#[test]
fn products_that_are_results_keep_their_columns() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([6, 8])).unwrap();
    let w = g.input("w", Role::Parameter, TensorType::f32([8, 10])).unwrap();
    let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
    let y = g.relu(y).unwrap();
    g.output("y", y);
    let rules = Rules { columns: Some(ColumnRules { multiple: 8, least: 1 }), ..Rules::DEFAULT };
    let [wide, plain] = [&rules, &Rules::DEFAULT]
        .map(|rules| print_graph(&run_passes(&g, rules, &CompileOptions::default(), None).unwrap()));
    assert_eq!(wide, plain);
}

#[test]
fn recomputing_takes_less_memory() {
    let graph = residual_step().unwrap();
    let transient = |recompute| {
        let options = CompileOptions { recompute, ..CompileOptions::default() };
        let plan = compile(&graph, &NullTarget, &options).unwrap();
        check_no_overwrites(&plan);
        plan.arena_bytes - plan.persistent_bytes
    };
    let [none, pointwise, blocks] = Recompute::ALL.map(transient);
    assert!(pointwise <= none && blocks < none, "{none} {pointwise} {blocks}");
}

#[test]
fn batch_norm_becomes_few_fusions() {
    let graph = run_passes(&residual_step().unwrap(), &Rules::DEFAULT, &CompileOptions::default(), None).unwrap();
    assert!(!graph.nodes().iter().any(|n| n.op.is_pointwise() || matches!(n.op, Op::MeanVar(_))));
    let fused_products =
        graph.nodes().iter().filter(|n| matches!(&n.op, Op::Fusion(r) if r.producer.is_some())).count();
    // Six forward convolutions with their moments, five data gradients with the sums of the norm before them.
    assert!(fused_products >= 10, "{fused_products} fused_products fusions\n{}", print_graph(&graph));
}

/// The norms between two convolutions of a block, and no others, are computed by those who read them.
#[test]
fn norms_of_own_statistics_run_in_prologues() {
    let graph = residual_step().unwrap();
    let without = CompileOptions { disabled: vec!["prologue".to_string()], ..CompileOptions::default() };
    let plan = |options| compile(&graph, &NullTarget, options).unwrap();
    let (with, without) = (plan(&CompileOptions::default()), plan(&without));
    let counts = with.kernel_counts();
    assert_eq!(counts.get("prologue+conv2d+fusion"), Some(&2), "{counts:?}");
    assert_eq!(counts.get("prologue+conv2d_weight_grad"), Some(&2), "{counts:?}");
    let images = |plan: &Plan| {
        let stored = plan.graph.nodes().iter().flat_map(|node| &node.outputs);
        stored.filter(|ty| ty.shape.rank() == 4 && ty.shape.cols() == 16).count()
    };
    // What is not stored: the two norms.
    assert_eq!(images(&with) + 2, images(&without));
}

/// A gate of squeeze and excite is applied by the convolution that reads what it scales, and by the gradient of its weights.
#[test]
fn gates_run_in_prologues() {
    let mut net = Net { graph: Graph::new(), parameters: Vec::new() };
    let x = net.graph.input("x", Role::Feed, TensorType::f32([2, 5, 5, 16])).unwrap();
    let conv = |net: &mut Net, name, x, cols| {
        let channels = net.graph.shape(x).cols();
        let w = net.parameter(name, [1, 1, channels, cols]).unwrap();
        net.graph.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[x, w]).unwrap()
    };
    let x = conv(&mut net, "expand", x, 32);
    let sigmoid = net.graph.unary(UnaryKind::Sigmoid, x).unwrap();
    let x = net.graph.mul(x, sigmoid).unwrap();
    let pooled = net.graph.mean(x, &[1, 2]).unwrap();
    let pooled = net.graph.reshape(pooled, [2, 1, 1, 32]).unwrap();
    let gate = conv(&mut net, "excite", pooled, 32);
    let gate = net.graph.unary(UnaryKind::Sigmoid, gate).unwrap();
    let gated = net.graph.mul(x, gate).unwrap();
    let y = conv(&mut net, "project", gated, 16);
    let square = net.graph.mul(y, y).unwrap();
    let loss = net.graph.mean(square, &[0, 1, 2, 3]).unwrap();
    let grads = gradients(&mut net.graph, loss, &net.parameters).unwrap();
    for (index, grad) in grads.into_iter().enumerate() {
        net.graph.output(&format!("gradient {index}"), grad);
    }
    let graph = run_passes(&net.graph, &Rules::DEFAULT, &CompileOptions::default(), None).unwrap();
    assert_same("gates", &net.graph, &graph, 1);
    let counts = compile(&net.graph, &NullTarget, &CompileOptions::default()).unwrap().kernel_counts();
    let with_prologue = |name: &str| -> usize {
        counts.iter().filter(|(kernel, _)| kernel.starts_with(name)).map(|(_, count)| count).sum()
    };
    // Two products: the convolution and the gradient of its weights.
    assert_eq!(["prologue+conv2d", "prologue+conv2d_weight_grad"].map(with_prologue), [2, 1], "{counts:?}");
}

/// A depthwise convolution computes its input itself where that is large and nothing else reads it.
#[test]
fn depthwise_convolutions_compute_what_they_alone_read() {
    let build = |function: Option<UnaryKind>, is_read_elsewhere: bool| {
        let mut g = Graph::new();
        let feed = |g: &mut Graph, name, shape: &[usize]| g.input(name, Role::Feed, TensorType::f32(shape)).unwrap();
        let x = feed(&mut g, "x", &[2, 6, 7, 4]);
        let [w, bias] = [feed(&mut g, "w", &[1, 1, 4, 16]), feed(&mut g, "bias", &[16])];
        let v = feed(&mut g, "v", &[3, 3, 1, 16]);
        let y = g.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[x, w]).unwrap();
        let y = g.add(y, bias).unwrap();
        let y = match function {
            None => y,
            Some(UnaryKind::Sigmoid) => {
                let sigmoid = g.unary(UnaryKind::Sigmoid, y).unwrap();
                g.mul(sigmoid, y).unwrap()
            }
            Some(kind) => g.unary(kind, y).unwrap(),
        };
        if is_read_elsewhere {
            g.output("middle", y);
        }
        let y = g.push1(Conv2d { groups: 16, ..Conv2d::new([2, 1], [[1; 2]; 2]) }, &[y, v]).unwrap();
        let y = g.relu(y).unwrap();
        g.output("y", y);
        g
    };
    let chains = |least_elements, function, is_read_elsewhere| {
        let graph = build(function, is_read_elsewhere);
        let rules = Rules { chain: Some(ChainRules { least_elements, longest_reduction: 4 }), ..Rules::DEFAULT };
        let passed = run_passes(&graph, &rules, &CompileOptions::default(), None).unwrap();
        assert_same("chain", &graph, &passed, 1);
        let producers = passed.nodes().iter().filter_map(|node| node.op.as_fusion()?.producer.as_deref());
        producers.filter(|op| matches!(op, Op::ConvThenDepthwise(_))).count()
    };
    for function in [None, Some(UnaryKind::Relu), Some(UnaryKind::Sigmoid)] {
        assert_eq!(chains(6 * 7 * 16, function, false), 1, "{function:?}");
        assert_eq!(chains(6 * 7 * 16 + 1, function, false), 0, "{function:?}: stays in cache");
        assert_eq!(chains(1, function, true), 0, "{function:?}: is a result");
    }
    assert_eq!(chains(1, Some(UnaryKind::Tanh), false), 0, "another function");
}

#[test]
fn a_depthwise_convolution_takes_what_follows_it_along() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([2, 6, 6, 8])).unwrap();
    let w = g.input("w", Role::Parameter, TensorType::f32([3, 3, 1, 8])).unwrap();
    let y = g.push1(Conv2d { groups: 8, ..Conv2d::new([1, 1], [[1; 2]; 2]) }, &[x, w]).unwrap();
    let y = g.relu(y).unwrap();
    g.output("y", y);
    let graph = run_passes(&g, &Rules::DEFAULT, &CompileOptions::default(), None).unwrap();
    let fused_products =
        graph.nodes().iter().filter(|n| matches!(&n.op, Op::Fusion(r) if r.producer.is_some())).count();
    assert_eq!(fused_products, 1, "{}", print_graph(&graph));
}

#[test]
fn plans_are_deterministic() {
    let plan = || {
        let plan = compile(&residual_step().unwrap(), &NullTarget, &CompileOptions::default()).unwrap();
        (print_plan(&plan), print_memory(&plan))
    };
    assert_eq!(plan(), plan());
}

/// What a chain of views shows.
fn viewed(graph: &Graph, mut value: Value) -> Value {
    while let Op::Reshape(_) = graph.node(value.node).op {
        value = graph.node(value.node).inputs[0];
    }
    value
}

/// Runs over the plan with a shadow of arena and state that knows which value each word holds; where a step may take several
/// micro-batches, over one of three.
fn check_no_overwrites(plan: &Plan) {
    let graph = &plan.graph;
    let mut owner: Vec<Option<Value>> = vec![None; plan.memory_bytes() / 4 + 16];
    let state = StateLayout::new(plan.state.iter().cloned(), plan.alignment);
    let range = |v: Value| {
        let start = match plan.location(v) {
            Location::Arena(offset) => offset,
            Location::State(number) => plan.arena_bytes + state.offset(number),
        };
        start / 4..start / 4 + graph.ty(v).bytes().div_ceil(4)
    };
    for id in graph.ids().filter(|&id| matches!(graph.node(id).op, Op::Constant(_) | Op::Input(_))) {
        let value = Value { node: id, output: 0 };
        range(value).for_each(|i| owner[i] = Some(value));
    }
    let holds = |owner: &[Option<Value>], v: Value| range(v).all(|i| owner[i] == Some(viewed(graph, v)));
    let micro_batches = if plan.accumulates() { 3 } else { 1 };
    for micro_batch in 1..=micro_batches {
        let is_last = micro_batch == micro_batches;
        for call in plan.calls.iter().filter(|call| call.per_micro_batch || is_last) {
            let node = graph.node(call.node);
            for &input in &node.inputs {
                assert!(holds(&owner, input), "{} reads a value that was overwritten", node.op);
            }
            let scratch = call.scratch.0 / 4..(call.scratch.0 + call.scratch.1).div_ceil(4);
            for i in scratch {
                owner[i] = None;
            }
            for output in 0..node.outputs.len() as u32 {
                let value = Value { node: call.node, output };
                range(value).for_each(|i| owner[i] = Some(value));
            }
        }
        for &(state, new) in graph.updates() {
            let expected = if is_last || graph.is_per_micro_batch(state) { new } else { state };
            assert!(holds(&owner, expected), "the content of {} is gone", graph.node(state.node).op);
        }
        for &(state, _) in graph.updates().iter().filter(|&&(state, _)| graph.is_per_micro_batch(state)) {
            range(state).for_each(|i| owner[i] = Some(state));
        }
    }
}

#[test]
fn live_values_are_kept_apart() {
    for fuse in [true, false] {
        let options = CompileOptions { fuse, ..Default::default() };
        let plan = compile(&residual_step().unwrap(), &NullTarget, &options).unwrap();
        check_no_overwrites(&plan);
        if fuse {
            // Only the shifts of norms that the backward pass still reads are copied; everything large is in place.
            assert!(plan.copies.iter().all(|c| c.bytes <= 4 * 16), "state is replaced in place: {:?}", plan.copies);
        }
    }
}

#[test]
fn what_a_micro_batch_reads_outlives_the_ones_before() {
    let graph = residual_step_of(Batches::Several).unwrap();
    for (fuse, disabled) in [(true, None), (false, None), (true, Some("schedule"))] {
        let disabled = disabled.into_iter().map(String::from).collect();
        let options = CompileOptions { fuse, disabled, ..Default::default() };
        let plan = compile(&graph, &NullTarget, &options).unwrap();
        assert!(plan.accumulates() && plan.calls.iter().any(|call| !call.per_micro_batch), "{}", print_plan(&plan));
        check_no_overwrites(&plan);
    }
    assert!(!compile(&residual_step().unwrap(), &NullTarget, &CompileOptions::default()).unwrap().accumulates());
}

#[test]
fn unreached_parameters_are_named() {
    let mut g = Graph::new();
    let a = g.input("used", Role::Parameter, TensorType::f32([2])).unwrap();
    let b = g.input("forgotten", Role::Parameter, TensorType::f32([2])).unwrap();
    let loss = g.sum(a, &[0]).unwrap();
    let error = gradients(&mut g, loss, &[a, b]).unwrap_err();
    assert_eq!(error, GraphError::Unreached(vec!["forgotten".to_string()]));
}

#[test]
fn the_way_through_an_operation_without_gradient_is_named() {
    let mut g = Graph::new();
    let a = g.input("weight", Role::Parameter, TensorType::f32([2])).unwrap();
    let floor = g.scoped("head", |g| g.unary(UnaryKind::Floor, a)).unwrap();
    let loss = g.sum(floor, &[0]).unwrap();
    let message = gradients(&mut g, loss, &[a]).unwrap_err().to_string();
    assert!(message.contains("floor at `head`") && message.contains("weight"), "{message}");
}

#[test]
fn products_that_nearly_got_a_fusion_are_named() {
    let mut g = Graph::new();
    let (x, w) = (
        g.input("x", Role::Feed, TensorType::f32([4, 3])).unwrap(),
        g.input("w", Role::Parameter, TensorType::f32([3, 5])).unwrap(),
    );
    let product = g.scoped("fc", |g| g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])).unwrap();
    let softmax = g.scoped("attend", |g| g.softmax(product)).unwrap();
    g.output("softmax", softmax);
    let fused = run_passes(&g, &Rules::DEFAULT, &CompileOptions::default(), None).unwrap();
    let [miss] = near_misses(&fused).try_into().unwrap();
    assert_eq!((miss.path.as_str(), miss.fusion.as_str(), miss.reason), ("fc", "attend", Reason::NeedsWholeRows));
}

/// A product's whole sum of squares is a fusion of one run of elements, apart from the product; with a bias, its rows are summed first.
#[test]
fn sums_of_whole_tensors_are_taken_at_once() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([4, 3])).unwrap();
    let w = g.input("w", Role::Parameter, TensorType::f32([3, 5])).unwrap();
    let bias = g.input("bias", Role::Parameter, TensorType::f32([5])).unwrap();
    let rate = g.input("rate", Role::Feed, TensorType::f32([])).unwrap();
    let product = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
    let scaled = g.mul(product, rate).unwrap();
    let biased = g.add(product, bias).unwrap();
    for (name, value) in [("plain", scaled), ("biased", biased)] {
        let squares = g.square(value).unwrap();
        let total = g.sum(squares, &[0, 1]).unwrap();
        g.output(name, total);
    }
    let sums = |rules: &Rules| {
        let fused = run_passes(&g, rules, &CompileOptions::default(), None).unwrap();
        let mut run = Interpreter::new(&fused);
        for (name, elements) in [("x", 12), ("w", 15), ("bias", 5), ("rate", 1)] {
            run.set(name, &(0..elements).map(|i| f64::from(i) - 3.5).collect::<Vec<_>>());
        }
        run.run();
        let fusions = fused.ids().filter_map(|id| fused.node(id).op.as_fusion());
        let domains: Vec<_> =
            fusions.filter(|fusion| fusion.producer.is_none()).map(|fusion| [fusion.rows, fusion.cols]).collect();
        (domains, ["plain", "biased"].map(|name| run.output(name).data[0]), near_misses(&fused).len())
    };
    let (domains, expected, _) = sums(&Rules::DEFAULT);
    assert_eq!(domains, [[1, 5]; 2], "each sum of rows is behind the product");
    let (domains, found, missed) = sums(&Rules { sums_of_whole_tensors: true, ..Rules::DEFAULT });
    assert!(domains.contains(&[20, 1]) && domains.contains(&[1, 5]), "{domains:?}");
    assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs()), "{expected:?}, {found:?}");
    assert_eq!(missed, 0, "the product lacks no fusion");
}
