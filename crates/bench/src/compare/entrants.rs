//! Who takes part in a group: the variants of its frameworks.

use super::{CompareError, Fusion, Group, Options, Wanted};
use crate::peers::process::Runner;
use crate::peers::protocol::{Capabilities, Failure, FailureKind, Support, Variant};
use crate::peers::{Peer, Peers, own};
use crate::show;
use std::collections::BTreeMap;
use std::path::Path;

/// What all frameworks of a comparison can do.
pub(super) struct Known<'a> {
    peers: &'a Peers,
    capabilities: BTreeMap<String, Result<Capabilities, Failure>>,
}

/// A variant of a framework in a group, or a framework without one that can take part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entrant {
    pub framework: String,
    pub version: String,
    /// Empty where it is not known.
    pub variant: String,
    pub fused: bool,
    /// Why it cannot take part.
    pub excluded: Option<Failure>,
}

impl Entrant {
    /// `pytorch+eager`
    pub(super) fn label(&self) -> String {
        match self.variant.as_str() {
            "" => self.framework.clone(),
            variant => format!("{}+{variant}", self.framework),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        self.framework == own::NAME
    }
}

impl<'a> Known<'a> {
    /// Asks each framework once what it can do; Bessemer in any case.
    pub(super) fn ask(
        groups: &[Group],
        peers: &'a Peers,
        runner: &Runner,
        logs: &Path,
        notify: &mut dyn FnMut(&str),
    ) -> Result<Self, CompareError> {
        let mut capabilities = BTreeMap::new();
        let wanted = groups.iter().flat_map(|group| &group.frameworks).map(|wanted| wanted.framework.as_str());
        for name in std::iter::once(own::NAME).chain(wanted) {
            let peer = peers.get(name)?;
            if capabilities.contains_key(name) {
                continue;
            }
            let answer = peer.describe(runner, logs);
            match &answer {
                Err(failure) if failure.kind == FailureKind::Interrupted => return Err(CompareError::Interrupted),
                Err(failure) => notify(&format!("{name}: {failure}")),
                Ok(_) => {}
            }
            capabilities.insert(name.to_owned(), answer);
        }
        Ok(Self { peers, capabilities })
    }

    pub(super) fn peer(&self, entrant: &Entrant) -> Result<&'a Peer, CompareError> {
        Ok(self.peers.get(&entrant.framework)?)
    }

    /// Whether a framework can be asked now.
    pub(super) fn is_there(&self, framework: &str) -> bool {
        self.capabilities.get(framework).is_some_and(Result::is_ok)
    }

    /// All that take part in a group, each once, in the order of the plan.
    pub(super) fn entrants(&self, group: &Group, options: &Options) -> Vec<Entrant> {
        let mut entrants: Vec<Entrant> = Vec::new();
        for wanted in &group.frameworks {
            for entrant in self.variants(wanted, group, options) {
                if entrants.iter().all(|known| known.label() != entrant.label()) {
                    entrants.push(entrant);
                }
            }
        }
        entrants
    }

    /// Bessemer in its usual form, which the others' work is compared with.
    pub(super) fn reference(&self) -> Entrant {
        let version = match self.capabilities.get(own::NAME) {
            Some(Ok(own)) => own.version.clone(),
            _ => String::new(),
        };
        let (framework, variant) = (own::NAME.to_owned(), own::FUSED.to_owned());
        Entrant { framework, version, variant, fused: true, excluded: None }
    }

    fn variants(&self, wanted: &Wanted, group: &Group, options: &Options) -> Vec<Entrant> {
        let framework = wanted.framework.clone();
        let without_variant = |version: &str, excluded: Failure| {
            let variant = wanted.variant.clone().unwrap_or_default();
            let version = version.to_owned();
            vec![Entrant { framework: framework.clone(), version, variant, fused: false, excluded: Some(excluded) }]
        };
        let known = match &self.capabilities[&wanted.framework] {
            Ok(known) => known,
            Err(failure) => return without_variant("", failure.clone()),
        };
        let chosen = chosen(known, wanted, group.fusion.as_deref(), options.one_variant);
        if chosen.is_empty() {
            let names: Vec<&str> = known.variants.iter().map(|variant| variant.name.as_str()).collect();
            let reason = format!("no such variant; there are {}", names.join(", "));
            return without_variant(&known.version, Failure::new(FailureKind::Unsupported, reason));
        }
        let excluded = excluded(known, group, options);
        let entrant = |variant: &Variant| Entrant {
            framework: framework.clone(),
            version: known.version.clone(),
            variant: variant.name.clone(),
            fused: variant.fused,
            excluded: excluded.clone(),
        };
        chosen.into_iter().map(entrant).collect()
    }
}

/// The variants that a plan means.
fn chosen<'v>(
    known: &'v Capabilities,
    wanted: &Wanted,
    fusion: Option<&[Fusion]>,
    one_variant: bool,
) -> Vec<&'v Variant> {
    let variants = || known.variants.iter();
    let of_fusion =
        |variant: &&Variant, fusion: &[Fusion]| fusion.contains(&if variant.fused { Fusion::On } else { Fusion::Off });
    match (&wanted.variant, fusion) {
        (Some(name), _) => variants().filter(|variant| variant.name == *name).collect(),
        (None, Some(fusion)) => variants().filter(|variant| of_fusion(variant, fusion)).collect(),
        (None, None) => {
            let most = if one_variant { 1 } else { usize::MAX };
            variants().filter(|variant| variant.default).take(most).collect()
        }
    }
}

/// Why a framework has no part in a group. Bessemer's emulation is as fast as it gets there.
fn excluded(known: &Capabilities, group: &Group, options: &Options) -> Option<Failure> {
    let unsupported = |reason: String| Some(Failure::new(FailureKind::Unsupported, reason));
    let (mode, precision, device) = (group.mode.name(), group.precision.name(), options.device.kind);
    if let Some(outputs) = group.outputs().filter(|outputs| !known.ends_with(&group.model, *outputs, device)) {
        return unsupported(format!("its inference of {} does not end with {}", group.model, show::outputs(outputs)));
    }
    match known.support(&group.model, group.mode, precision, device) {
        Support::Native => None,
        Support::Emulated if options.emulated || known.framework == own::NAME => None,
        Support::Emulated => {
            unsupported(format!("{precision} is emulated on this processor; --emulated runs it all the same"))
        }
        Support::None => unsupported(format!("it has no {mode} of {} in {precision} on {device}", group.model)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Capabilities {
        let variant =
            |name: &str, fused, default| Variant { name: name.into(), fused, default, settings: String::new() };
        Capabilities {
            protocol: 1,
            framework: "x".into(),
            version: "1".into(),
            variants: vec![variant("eager", false, true), variant("compile", true, true), variant("odd", true, false)],
            work: Vec::new(),
        }
    }

    fn names(variant: Option<&str>, fusion: Option<&[Fusion]>, one_variant: bool) -> Vec<String> {
        let wanted = Wanted { framework: "x".into(), variant: variant.map(str::to_owned) };
        let known = known();
        chosen(&known, &wanted, fusion, one_variant).into_iter().map(|variant| variant.name.clone()).collect()
    }

    #[test]
    fn variants_are_chosen_by_name_by_fusion_or_by_default() {
        assert_eq!(names(None, None, false), ["eager", "compile"]);
        assert_eq!(names(None, None, true), ["eager"]);
        assert_eq!(names(Some("odd"), None, true), ["odd"]);
        assert_eq!(names(None, Some(&[Fusion::On]), false), ["compile", "odd"]);
        assert_eq!(names(None, Some(&[Fusion::Off]), false), ["eager"]);
        assert!(names(Some("none"), None, false).is_empty());
    }
}
