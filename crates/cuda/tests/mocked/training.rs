//! Steps of training of whole models over the mock of a GPU, compared with those of the CPU on the same graphs.

use crate::steps::{
    Feed, History, Run, Trouble, compare, content, histories, in_random_orders, in_their_own_memory, launches, on_gpu,
};
use bessemer_ir::{DType, TensorType};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::electra::{ElectraConfig, PretrainingOptions};
use bessemer_models::{LossOptions, Model, bert, electra, find};
use bessemer_nn::{
    Adam, Average, Clip, ClipForm, ClipOf, DecayExclude, Lamb, LossScale, Optimizer, Schedule, Sgd, TrainConfig,
};

/// A ResNet-20 by gradient descent with momentum.
fn resnet_scaled(loss_scale: Option<LossScale>) -> Model {
    let spec = find("resnet20-cifar").unwrap();
    let options = bessemer_models::ModelOptions { image_size: [16, 16], ..spec.options() };
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        report_grad_norm: true,
        loss_scale,
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.01))
    };
    Model::train(spec.architecture, &options, &LossOptions::default(), &config, 4).unwrap()
}

fn resnet() -> Model {
    resnet_scaled(None)
}

fn pictures(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    content(name, ty, 10, batch)
}

/// Three steps, of four images of 16 x 16: in the fifth step norms of gradients differ by 1e-4, in the fourteenth by 2e-2, as elements near
/// zero then pass a ReLU or not, and images of 32 x 32 take four times as long.
#[test]
fn steps_of_a_resnet() {
    compare("three steps of a ResNet", &resnet(), &Run::DEFAULT, &pictures);
}

/// Of momenta and parameters. With gradient descent a state differs as gradients do; rules that divide gradients by their own size, as Adam
/// and LAMB do, make of one that should be zero, such as that of a bias of keys, a step as long as any other, in the direction
/// that its roundings have.
fn descent() -> Optimizer {
    Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })
}

/// Sums that differ in their last digit are now and then rounded to different neighbours, of which `f16` has 11 binary places, and
/// elements near zero then pass a ReLU or not, with all of their gradient. In the pass of a convolution results are not rounded before sums
/// are taken and residuals added: the norm of the gradient then differs by 5e-3 in the third step, and by 7e-3 on the CPU alone where
/// parameters begin larger by 2.4e-7 of themselves.
#[test]
fn steps_of_a_resnet_in_16_bits() {
    for (no_epilogues, of_scalars) in [(true, 2e-3), (false, 1e-2)] {
        let run = Run {
            precision: DType::F16,
            of_scalars,
            of_later_scalars: of_scalars,
            of_state: 2e-3,
            of_gradients: Some(3.0),
            no_epilogues,
            ..Run::DEFAULT
        };
        compare("steps_of_a_resnet_in_16_bits", &resnet(), &run, &pictures);
    }
}

/// Layers as wide as those of the size, with fewer words, whose products get further columns.
fn cut(size: BertConfig, layers: usize) -> BertConfig {
    BertConfig { vocab_size: 1030, num_hidden_layers: layers, max_position_embeddings: 32, ..size }
}

/// Of models 128 wide.
const FEW: Sequences = Sequences { batch: 2, length: 16, predictions: 3 };
/// Of models 256 wide.
const MORE: Sequences = Sequences { batch: 2, length: 32, predictions: 5 };

fn bert_of(config: &BertConfig, sequences: Sequences, optimizer: Optimizer) -> Model {
    let train = TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        accumulation: 2,
        ..TrainConfig::new(optimizer, Schedule::constant(1e-3))
    };
    bert::train(config, sequences, &BertOptions::default(), &train).unwrap()
}

fn bert_by(layers: usize, optimizer: Optimizer) -> Model {
    bert_of(&cut(BertConfig::tiny(), layers), FEW, optimizer)
}

fn lamb() -> Optimizer {
    Optimizer::Lamb(Lamb::nvidia(0.01))
}

fn bert(layers: usize) -> Model {
    bert_by(layers, lamb())
}

/// Feeds of a BERT or an ELECTRA.
fn sequences(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    let most = match name {
        "segment_ids" | "next_sentence_labels" => 2,
        "masked_lm_positions" => 16,
        // A mask of ones and zeros.
        "input_mask" => 2,
        _ => 500,
    };
    content(name, ty, most, batch)
}

/// LAMB divides gradients by their own size, so that roundings of the smallest ones show in biases, which begin at zero.
#[test]
fn steps_of_a_bert_of_two_micro_batches() {
    let run = Run { micro_batches: 2, of_state: 5e-5, ..Run::DEFAULT };
    compare("steps_of_a_bert_of_two_micro_batches", &bert(2), &run, &sequences);
}

/// Small differences have had the time to grow. Micro-batches of two sequences: with four the test would take twice as long, and it is the
/// longest of all.
#[test]
fn twenty_steps_of_a_bert_of_two_micro_batches() {
    let model = bert_of(&cut(BertConfig::mini(), 2), MORE, lamb());
    let run = Run { steps: 20, micro_batches: 2, of_state: 1e-3, ..Run::DEFAULT };
    compare("twenty_steps_of_a_bert_of_two_micro_batches", &model, &run, &sequences);
}

/// Biases are zero at first, and are added in the pass of products from the second step on.
#[test]
fn steps_of_a_bert_in_16_bits() {
    let run = Run {
        steps: 2,
        micro_batches: 2,
        precision: DType::Bf16,
        of_scalars: 2e-3,
        of_state: 2e-3,
        of_gradients: Some(3.0),
        ..Run::DEFAULT
    };
    compare("steps_of_a_bert_in_16_bits", &bert_by(2, descent()), &run, &sequences);
}

fn electra_of(size: ElectraConfig, sequences: Sequences, optimizer: Optimizer) -> Model {
    let config = ElectraConfig { encoder: cut(size.encoder, 2), ..size };
    let train = TrainConfig::new(optimizer, Schedule::constant(1e-3));
    electra::train(&config, sequences, &PretrainingOptions::new(0.25), &train).unwrap()
}

fn electra_by(optimizer: Optimizer) -> Model {
    electra_of(ElectraConfig::tiny(), FEW, optimizer)
}

/// Five steps, of two sequences: after some twenty a sample of the generator is another one.
#[test]
fn steps_of_an_electra() {
    let model = electra_of(ElectraConfig::mini(), MORE, Optimizer::Adam(Adam::bert(0.01)));
    // The gradient of a key's bias is nothing but rounding, whose size Adam divides by.
    compare("steps_of_an_electra", &model, &Run { steps: 5, of_state: 2e-3, ..Run::DEFAULT }, &sequences);
}

#[test]
fn steps_of_an_electra_in_16_bits() {
    let run = Run {
        steps: 2,
        precision: DType::F16,
        of_scalars: 2e-3,
        of_state: 2e-3,
        of_gradients: Some(3.0),
        ..Run::DEFAULT
    };
    compare("steps_of_an_electra_in_16_bits", &electra_by(descent()), &run, &sequences);
}

/// A step whose gradient is too large for `f16` changes nothing but the scale of the loss, which it halves, and two good ones in a row
/// double it, as on the CPU.
#[test]
fn the_loss_scale_follows_overflows() {
    let test = "the_loss_scale_follows_overflows";
    // Far from the scales, some 260,000, at which it depends on the last digits whether a gradient overflows.
    let scaling = LossScale { initial: 4.0 * 183_500.0, growth_steps: Some(2) };
    let run = Run { steps: 6, precision: DType::F16, ..Run::DEFAULT };
    let Some([gpu, cpu]) = histories(test, &resnet_scaled(Some(scaling)), &run, &pictures) else { return };
    let scalar = |scalars: &[(String, f32)], name: &str| {
        scalars.iter().find_map(|(other, value)| (other == name).then_some(*value)).unwrap()
    };
    let of_all = |history: &History, name| history.iter().map(|(scalars, _)| scalar(scalars, name)).collect::<Vec<_>>();
    let scales = of_all(&gpu, "loss_scale");
    println!("{test}: {scales:?}");
    assert_eq!(scales, of_all(&cpu, "loss_scale"));
    let (mut good, mut overflows, mut doubled) = (0, 0, 0);
    for (number, pair) in gpu.windows(2).enumerate() {
        let [(_, before), (scalars, after)] = pair else { unreachable!("windows of two") };
        let factor = after["loss_scale"][0] / scalar(scalars, "loss_scale");
        if scalar(scalars, "grad_norm").is_finite() {
            good += 1;
            assert_eq!(factor, if good % 2 == 0 { 2.0 } else { 1.0 }, "step {}", number + 1);
            doubled += usize::from(factor == 2.0);
        } else {
            (good, overflows) = (0, overflows + 1);
            assert_eq!(factor, 0.5, "step {}", number + 1);
            let changed = after.iter().filter(|(name, content)| before[*name] != **content).map(|(name, _)| name);
            assert!(changed.eq(["loss_scale"]), "step {}", number + 1);
        }
    }
    assert!(overflows > 1 && doubled > 0, "{overflows} overflows, doubled {doubled} times");
    let [gpu, cpu] = [gpu, cpu].map(|history| of_all(&history, "loss"));
    assert!(gpu.iter().zip(&cpu).all(|(x, y)| (x - y).abs() <= 2e-3 * y.abs()), "{gpu:?} {cpu:?}");
}

/// Behind steps that fail, and others that are queued behind those, training goes on as on the CPU. A step with an index out of
/// range is as if it had not been, to the bit.
#[test]
fn steps_of_a_bert_between_steps_that_fail() {
    let test = "steps_of_a_bert_between_steps_that_fail";
    let model = bert(1);
    // One layer, whose biases have the smallest gradients.
    let with = |trouble| Run { micro_batches: 2, of_state: 2e-4, trouble, ..Run::DEFAULT };
    let undisturbed = compare(test, &model, &with(Trouble::Nothing), &sequences);
    let behind_indices = on_gpu(test, &model, &with(Trouble::Index), &sequences);
    assert!(undisturbed == behind_indices, "something is left of the steps that failed");
    compare(test, &model, &with(Trouble::Loss), &sequences);
}

/// Updates of weights and statistics, casts of weights, sums for norms of gradients, numbers of one element: launches of a step where
/// each is launched alone, and where they are launched together. That states are the same to the bit is seen by all tests that compare
/// recorded steps with those that are not.
#[test]
fn regions_alike_are_launched_as_one() {
    let test = "regions_alike_are_launched_as_one";
    let cases: [(Model, DType, Feed<'_>, [i64; 2]); 4] = [
        (resnet(), DType::F32, &pictures, [253, 158]),
        (resnet(), DType::Bf16, &pictures, [273, 162]),
        (bert(2), DType::F32, &sequences, [273, 133]),
        (bert(2), DType::Bf16, &sequences, [280, 125]),
    ];
    let counted = |(model, precision, feed, expected): &(Model, DType, Feed<'_>, [i64; 2])| {
        launches(test, model, *precision, *feed).map(|found| (found, *expected))
    };
    let (found, expected): (Vec<_>, Vec<_>) = cases.iter().filter_map(counted).unzip();
    assert_eq!(found, expected);
}

/// One step of each, of two micro-batches where the model has several: each launch leaves all memory of the plan and of the state alone
/// that it does not write, and what a call gives follows from its inputs alone, all of it.
#[test]
fn launches_touch_their_own_memory() {
    let electra = || electra_by(Optimizer::Adam(Adam::bert(0.01)));
    let cases: [(&str, Model, usize, DType, Feed<'_>); 6] = [
        ("a ResNet", resnet(), 1, DType::F32, &pictures),
        ("a ResNet", resnet(), 1, DType::F16, &pictures),
        ("a BERT by LAMB", bert(1), 2, DType::F32, &sequences),
        ("a BERT", bert_by(1, descent()), 2, DType::Bf16, &sequences),
        ("an ELECTRA", electra(), 1, DType::F32, &sequences),
        ("an ELECTRA", electra(), 1, DType::F16, &sequences),
    ];
    for (name, model, micro_batches, precision, feed) in &cases {
        let run = Run { steps: 1, micro_batches: *micro_batches, precision: *precision, ..Run::DEFAULT };
        in_their_own_memory(&format!("{name} in {precision}"), model, &run, *feed);
    }
    let run = Run { steps: 1, precision: DType::F16, no_epilogues: true, ..Run::DEFAULT };
    in_their_own_memory("a ResNet in f16 without epilogues", &resnet(), &run, &pictures);
}

/// Kernels are those of the tests above.
#[test]
fn steps_of_models_in_random_orders() {
    let few = || (1..6, false);
    in_random_orders("ResNet-20 in random orders", &resnet(), DType::F32, few(), &pictures);
    in_random_orders("BERT in random orders", &bert(2), DType::Bf16, few(), &sequences);
    let adam = Optimizer::Adam(Adam::bert(0.01));
    in_random_orders("ELECTRA in random orders", &electra_by(adam), DType::F32, few(), &sequences);
}

/// One layer, 32 wide, by gradient descent, so that steps are short. Half of the seeds with steps that are launched one by one.
#[test]
fn steps_of_a_narrow_bert_in_200_random_orders() {
    let size = BertConfig { hidden_size: 32, num_attention_heads: 2, intermediate_size: 64, ..BertConfig::tiny() };
    let config = BertConfig { vocab_size: 512, ..cut(size, 1) };
    let train = TrainConfig::new(descent(), Schedule::constant(1e-3));
    let model = bert::train(&config, Sequences { batch: 1, ..FEW }, &BertOptions::default(), &train).unwrap();
    for (seeds, eager) in [(1..101, false), (101..201, true)] {
        in_random_orders("a narrow BERT in random orders", &model, DType::F32, (seeds, eager), &sequences);
    }
}
