use super::*;
use crate::setup::of_resolved;
use proptest::prelude::*;
use toml::Value;

fn load(name: &str, overrides: &[&str]) -> Result<Recipe, String> {
    let overrides: Result<Vec<Override>, _> = overrides.iter().map(|text| text.parse()).collect();
    overrides.and_then(|overrides| Recipe::load(name, &overrides)).map_err(|error| error.to_string())
}

fn error(overrides: &[&str]) -> String {
    load("resnet50-90e", overrides).unwrap_err()
}

#[test]
fn builtins_are_valid_and_round_trip() {
    for name in builtin_names() {
        let recipe = Recipe::load(name, &[]).unwrap();
        assert_eq!(recipe.name, name);
        assert_eq!(Recipe::from_toml(&recipe.to_toml(), name, &[]).unwrap(), recipe);
    }
}

#[test]
fn published_facts() {
    let recipe = load("resnet50-90e", &[]).unwrap();
    assert_eq!(recipe.optimizer.weight_decay, 1.0 / 32768.0);
    assert_eq!((recipe.train.step_samples(), recipe.schedule.resolve(2048, 625, 90.0).peak_lr), (2048, 2.048));
    let own = recipe.to_table();
    assert_eq!((own["data"]["image_size"].as_integer(), own["data"]["flip"].as_float()), (Some(224), Some(0.5)));
    let mixup = load("resnet50-250e", &[]).unwrap().to_table()["train"]["mixup_alpha"].as_float();
    assert_eq!(mixup, Some(0.2));

    let tf1 = load("resnet50-90e-tf1", &[]).unwrap();
    let own = tf1.to_table();
    assert_eq!(own["model"]["num_classes"].as_integer(), Some(1001));
    assert_eq!(["label_offset", "spare_outputs"].map(|name| own["data"][name].as_integer()), [Some(0), Some(1)]);
    let mean: Vec<f64> = own["data"]["mean"].as_array().unwrap().iter().filter_map(Value::as_float).collect();
    assert_eq!(mean.iter().map(|mean| (mean * 25_500.0).round()).collect::<Vec<_>>(), [12_368.0, 11_628.0, 10_353.0]);
    assert_eq!(tf1.precision.loss_scale_growth_steps, None);
}

#[test]
fn overrides_are_typed() {
    let recipe = load(
        "resnet50-90e",
        &[
            "train.batch_size=32",
            "schedule.base_lr=1",
            "schedule.kind=linear",
            "data.crop_scale=[0.25, 1]",
            "optimizer.nesterov = true",
            "data.source=/data/2012",
            "name=mine",
        ],
    )
    .unwrap();
    assert_eq!((recipe.train.batch_size, recipe.schedule.base_lr), (32, 1.0));
    let crop = recipe.to_table()["data"]["crop_scale"].to_string();
    assert_eq!((recipe.schedule.kind, crop.as_str()), (ScheduleKind::Linear, "[0.25, 1.0]"));
    let rule = OptimizerRule::Sgd(SgdFields { momentum: 0.875, nesterov: true, velocity: Default::default() });
    assert_eq!((&recipe.optimizer.rule, recipe.data.source.as_deref()), (&rule, Some("/data/2012")));
    assert_eq!(recipe.name, "mine");
}

#[test]
fn steps_replace_epochs_and_empty_means_default() {
    let recipe =
        load("resnet50-90e", &["train.steps=500", "checkpoint.every_steps=100", "optimizer.momentum="]).unwrap();
    assert_eq!((recipe.train.epochs, recipe.train.steps), (None, Some(500)));
    assert_eq!((recipe.checkpoint.every_epochs, recipe.checkpoint.every_steps), (None, Some(100)));
    let rule = OptimizerRule::Sgd(SgdFields { momentum: 0.9, nesterov: false, velocity: Default::default() });
    assert_eq!(recipe.optimizer.rule, rule);
    let recipe = recipe.with_overrides(&[Override::new("train.epochs", 3)]).unwrap();
    assert_eq!((recipe.train.epochs, recipe.train.steps), (Some(3), None));
}

#[test]
fn mistakes_get_one_message_with_field_value_and_range() {
    let cases = [
        (&["train.batch_size=-4"][..], "train.batch_size: -4 is not allowed; the range is 1 to 65536"),
        (&["data.image_size=0"], "data.image_size: 0 is not allowed; the range is 8 to 8192"),
        (&["optimizer.momentum=1.0"], "optimizer.momentum: 1.0 is not allowed; the range is 0 to below 1"),
        (&["train.ema_decay=0"], "train.ema_decay: 0 is not allowed; the range is above 0 to below 1"),
        (&["schedule.base_lr=nan"], "schedule.base_lr: nan is not allowed; the range is above 0 to 1000"),
        (&["data.std=[0.2, 0.0, 0.2]"], "data.std: [0.2, 0.0, 0.2] is not allowed; the range is above 0 to 1"),
        (
            &["train.batch_size=many"],
            "train.batch_size: invalid type: string \"many\", expected a whole number, 0 or more",
        ),
        (
            &["train.batch_size=1.5"],
            "train.batch_size: invalid type: floating point `1.5`, expected a whole number, 0 or more",
        ),
        (&["data.crop_scale=[0.5]"], "data.crop_scale: invalid length 1, expected an array of length 2"),
        (&["data.crop_scale=[0.5, 0.1]"], "data.crop_scale: [0.5, 0.1] must be in ascending order"),
        (&["data.eval_resize=200"], "data.eval_resize: 200 is smaller than data.eval_image_size = 224"),
        (&["schedule.milestones=[30]"], "schedule.milestones: belongs to schedule.kind = \"step\""),
        (&["schedule.kind=step", "schedule.milestones=[60, 30]"], "[60, 30] must be in ascending order"),
        (&["schedule.warmup_in_decay=true"], "schedule.warmup_in_decay: needs"),
        (&["train.epochs="], "train: one of train.epochs and train.steps must be given"),
        (&["model.name="], "model: missing field `name`"),
    ];
    for (overrides, expected) in cases {
        let text = error(overrides);
        assert!(text.starts_with("recipe resnet50-90e: ") && text.contains(expected), "{text}\nexpected {expected}");
    }
}

#[test]
fn fields_of_others_are_refused_and_not_written() {
    let cases = [
        (
            "resnet50-90e",
            "text.sequence_length=128",
            "text: unknown field `text` (it is of recipes for models that are",
        ),
        (
            "resnet50-90e",
            "model.hidden_dropout=0.1",
            "model.hidden_dropout: unknown field `hidden_dropout` (it is of recipes for models that answer questions, ",
        ),
        (
            "resnet50-90e",
            "model.name=bert-base",
            "recipe resnet50-90e is for models that classify images; bert-base is one of the models that are pre-trained as BERT",
        ),
        ("resnet50-90e", "optimizer.betas=[0.9, 0.99]", "(it is of optimizer.kind = \"adam\", \"adamw\" and \"lamb\")"),
        ("electra-squad", "text.distinct=true", "text: unknown field `text` (it is of recipes for"),
        ("electra-base-phase1", "text.max_predictions=9", "(it is of recipes for models that are pre-trained as BERT)"),
        (
            "bert-base-phase1",
            "model.generator_fraction=1",
            "(it is of recipes for models that are pre-trained as ELECTRA)",
        ),
        ("bert-base-phase1", "optimizer.layer_decay=0.8", "(it is of recipes for models that answer questions)"),
        ("electra-squad", "squad.doc_stride=400", "squad.doc_stride: 400 is more than the 317 tokens of context"),
        ("electra-squad", "model.init=nvidia_torch", "there are \"truncated\", \"normal\", \"mimetic\""),
        ("bert-base-phase1", "train.mixup_alpha=0.2", "(it is of recipes for models that classify images)"),
        ("bert-base-phase1", "optimizer.momentum=0.9", "(it is of optimizer.kind = \"sgd\")"),
        ("bert-small-text", "optimizer.trust=all", "(it is of optimizer.kind = \"lamb\")"),
        ("resnet50-90e", "schedule.power=2", "schedule.power: belongs to schedule.kind = \"polynomial\""),
        ("bert-base-phase1", "schedule.warmup_steps=9", "only one of warmup_epochs, warmup_steps and warmup_fraction"),
        ("bert-base-phase1", "text.max_predictions=126", "text.max_predictions: 126 is more than the 125 tokens"),
        ("resnet50-90e", "model.num_classes=", "model: missing field `num_classes`"),
        ("resnet50-90e", "model.name=resnet5", "model.name: there is no model `resnet5`; there are resnet18, "),
        ("resnet50-90e", "model.name=resnet5", "(did you mean `resnet50`?)"),
        ("bert-base-phase1", "model.init=torch", "unknown variant `torch`, expected one of `normal`, `truncated`"),
        ("resnet50-90e", "model.init=truncated", "expected `torch` or `variance_scaling`"),
        ("bert-base-phase1", "text.masked_mean=google", "unknown variant `google`, expected `torch` or `tensorflow`"),
        ("resnet50-90e", "train=3", "train: invalid type: integer, expected a section"),
        ("resnet50-90e", "description=3", "description: invalid type: integer, expected a string"),
    ];
    for (name, item, expected) in cases {
        let text = load(name, &[item]).unwrap_err();
        assert!(text.contains(expected), "{text}\nexpected {expected}");
    }
    let resnet = load("resnet50-90e", &[]).unwrap().to_toml();
    assert!(!["[text]", "hidden_dropout", "betas", "power"].iter().any(|part| resnet.contains(part)), "{resnet}");
    assert!(resnet.contains("init = \"torch\""), "{resnet}");
    let bert = load("bert-base-phase1", &[]).unwrap().to_toml();
    assert!(bert.contains("init = \"nvidia_torch\"") && bert.contains("masked_mean = \"torch\""), "{bert}");
    assert!(!["num_classes", "crop", "nesterov", "mixup"].iter().any(|part| bert.contains(part)), "{bert}");
}

#[test]
fn facts_of_bert() {
    let (first, second) = (load("bert-base-phase1", &[]).unwrap(), load("bert-base-phase2", &[]).unwrap());
    assert_eq!((first.train.step_samples(), second.train.step_samples()), (65_536, 32_768));
    assert_eq!((first.train.steps, second.train.steps), (Some(7038), Some(1563)));
    let peak = first.schedule.resolve(65_536, 1, 7038.0);
    // The jump of the published schedule where warm-up ends, at 28.43 % of the steps.
    let rates = of_resolved(&peak, 1, 7038.0);
    let (before, after) = (rates.learning_rate(1999), rates.learning_rate(2000));
    assert!((before - 5.997e-3).abs() < 1e-5 && (after - 6e-3 * (1.0 - 2001.0 / 7038.0_f64).sqrt()).abs() < 1e-9);
}

#[test]
fn unknown_names_come_with_the_closest() {
    let cases = [
        (&["train.batch_sise=4"][..], "unknown field `batch_sise`", "(did you mean `batch_size`?)"),
        (&["shedule.base_lr=4"], "unknown field `shedule`", "(did you mean `schedule`?)"),
        (&["schedule.kind=cosin"], "schedule.kind: unknown variant `cosin`", "(did you mean `cosine`?)"),
        (&["model.padding=SAME"], "unknown variant `SAME`, expected `symmetric` or `same`", ""),
    ];
    for (overrides, problem, hint) in cases {
        let text = error(overrides);
        assert!(text.contains(problem) && text.contains(hint), "{text}\nexpected {problem} {hint}");
    }
    let text = load("resnet50-9e", &[]).unwrap_err();
    assert!(text.starts_with("no recipe `resnet50-9e` (did you mean `resnet50-90e`?)"), "{text}");
    assert!(!load("zzzzzzzzzzzzz", &[]).unwrap_err().contains("did you mean"));
}

#[test]
fn malformed_input_is_located() {
    for text in ["train.epochs", "=3", ".a=1"] {
        assert!(error(&[text]).contains("is not of the form section.field=value"));
    }
    let text = Recipe::from_toml("name = \"a\"\n[train\n", "mine.toml", &[]).unwrap_err().to_string();
    assert!(text.starts_with("recipe mine.toml: ") && text.contains("line 2"), "{text}");
    let both = Recipe::load("cifar", &[]).unwrap().to_toml().replace("epochs = 200", "epochs = 200\nsteps = 10");
    let text = Recipe::from_toml(&both, "both", &[]).unwrap_err().to_string();
    assert!(text.contains("only one of train.epochs and train.steps can be given"), "{text}");
}

proptest! {
    #[test]
    fn any_override_is_an_answer_not_a_panic(text in "[a-z.=_0-9\\[\\]\"{} -]{0,40}") {
        if let Ok(item) = text.parse::<Override>() {
            let _ = Recipe::load("cifar", &[item]);
        }
    }

    #[test]
    fn numbers_survive_the_round_trip(lr in 1e-300_f64..1000.0, decay in 0.0_f64..1.0, seed in 0..i64::MAX) {
        let overrides = [
            Override::new("schedule.base_lr", lr),
            Override::new("optimizer.weight_decay", decay),
            Override::new("train.seed", seed),
        ];
        let recipe = Recipe::load("cifar", &overrides).unwrap();
        prop_assert_eq!((recipe.schedule.base_lr, recipe.optimizer.weight_decay), (lr, decay));
        prop_assert_eq!(Recipe::from_toml(&recipe.to_toml(), "again", &[]).unwrap(), recipe);
    }
}

#[test]
fn the_loss_scale_of_fp16_adapts_unless_it_is_given_alone() {
    let scaling = |overrides: &[&str]| {
        let recipe = load("cifar", overrides).unwrap();
        assert_eq!(Recipe::from_toml(&recipe.to_toml(), "cifar", &[]).unwrap(), recipe);
        recipe.precision.loss_scaling()
    };
    let fp16 = "precision.compute=fp16";
    assert_eq!(scaling(&[]), None);
    assert_eq!(scaling(&[fp16]), Some((65_536.0, Some(2_000))));
    assert_eq!(scaling(&[fp16, "precision.loss_scale=128"]), Some((128.0, None)));
    assert_eq!(scaling(&[fp16, "precision.loss_scale_growth_steps=7"]), Some((65_536.0, Some(7))));
    let both = [fp16, "precision.loss_scale=128", "precision.loss_scale_growth_steps=7"];
    assert_eq!(scaling(&both), Some((128.0, Some(7))));
    assert!(!load("cifar", &[]).unwrap().to_toml().contains("loss_scale"));
}
