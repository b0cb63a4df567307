const RECIPES: [(&str, &str); 18] = [
    ("resnet50-50e", include_str!("../../recipes/resnet50-50e.toml")),
    ("resnet50-90e", include_str!("../../recipes/resnet50-90e.toml")),
    ("resnet50-250e", include_str!("../../recipes/resnet50-250e.toml")),
    ("resnet50-90e-tf1", include_str!("../../recipes/resnet50-90e-tf1.toml")),
    ("imagenette-small", include_str!("../../recipes/imagenette-small.toml")),
    ("shapes-quick", include_str!("../../recipes/shapes-quick.toml")),
    ("cifar", include_str!("../../recipes/cifar.toml")),
    ("bert-base-phase1", include_str!("../../recipes/bert-base-phase1.toml")),
    ("bert-base-phase2", include_str!("../../recipes/bert-base-phase2.toml")),
    ("bert-dlperf", include_str!("../../recipes/bert-dlperf.toml")),
    ("bert-small-text", include_str!("../../recipes/bert-small-text.toml")),
    ("electra-base-phase1", include_str!("../../recipes/electra-base-phase1.toml")),
    ("electra-base-phase2", include_str!("../../recipes/electra-base-phase2.toml")),
    ("electra-small-text", include_str!("../../recipes/electra-small-text.toml")),
    ("electra-squad", include_str!("../../recipes/electra-squad.toml")),
    ("electra-squad-v2", include_str!("../../recipes/electra-squad-v2.toml")),
    ("electra-squad-small", include_str!("../../recipes/electra-squad-small.toml")),
    ("electra-squad-tiny", include_str!("../../recipes/electra-squad-tiny.toml")),
];

/// Names of the recipes that the program carries.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}

pub(super) fn text(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
