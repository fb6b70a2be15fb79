//! Arms of our arena with other values of its constants, in builds with the feature `tune`. An arm with one mechanism switched off shows
//! what that mechanism contributes.

use super::{Arm, Colour, ZK_ALLOC};
use ::zk_alloc::tuning::{CONSTANTS, Constant};

/// Prefix of the arms' names, `zk-alloc:NAME=VALUE`, with `+` between several constants.
pub(crate) const PREFIX: &str = "zk-alloc:";
/// Name of the set of arms that each switch off one mechanism.
const ABLATION: &str = "ablation";
/// Name of the set of arms that each halve or double one constant.
const CONSTANTS_SET: &str = "constants";

/// The names of both sets.
pub(crate) const SETS: [&str; 2] = [ABLATION, CONSTANTS_SET];

/// The constants of the headroom mechanism, which is off only if all of them have their `off` values.
const OF_HEADROOM: [&str; 3] = ["headroom_part", "min_headroom_bytes", "max_headroom_bytes"];

/// Returns the arms of the set `name`; `None` if `name` is neither of the two sets.
pub(crate) fn set(name: &str) -> Option<Vec<&'static Arm>> {
    let values: Vec<String> = match name {
        ABLATION => {
            let (headroom, others): (Vec<_>, Vec<_>) =
                CONSTANTS.iter().partition(|constant| OF_HEADROOM.contains(&constant.name));
            let headroom: Vec<_> = headroom.into_iter().filter_map(off).collect();
            others.into_iter().filter_map(off).chain([headroom.join("+")]).collect()
        }
        CONSTANTS_SET => CONSTANTS.iter().flat_map(halved_and_doubled).collect(),
        _ => return None,
    };
    Some(values.iter().map(|values| arm(values).expect("a constant and a number")).collect())
}

/// Returns the arm with this name; `None` if the name contains an unknown constant, or a value that is not a number.
pub(crate) fn named(name: &str) -> Option<&'static Arm> {
    arm(name.strip_prefix(PREFIX)?)
}

/// Returns the setting that switches a constant's mechanism off; `None` if the constant has no mechanism of its own.
fn off(constant: &Constant) -> Option<String> {
    let value = constant.off?;
    let shown = if value == usize::MAX { "never".into() } else { value.to_string() };
    Some(format!("{}={shown}", constant.name))
}

/// Returns the settings that halve and double a constant; none for a switch, which is 0 or 1.
fn halved_and_doubled(constant: &Constant) -> Vec<String> {
    let value = constant.value;
    let values = if constant.unit == "0 or 1" { Vec::new() } else { vec![value / 2, value.saturating_mul(2)] };
    values.into_iter().map(|value| format!("{}={value}", constant.name)).collect()
}

/// Builds the arm for `NAME=VALUE+NAME=VALUE`. The arm lives as long as the process.
fn arm(values: &str) -> Option<&'static Arm> {
    let mut confirms: Vec<(&str, &str)> = Vec::new();
    for part in values.split('+') {
        let (name, value) = part.split_once('=')?;
        let constant = CONSTANTS.iter().find(|constant| constant.name == name)?;
        let value = if value == "never" { usize::MAX } else { value.parse().ok()? };
        confirms.push((constant.name, value.to_string().leak()));
    }
    let setting: Vec<_> = confirms.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some(Box::leak(Box::new(Arm {
        name: format!("{PREFIX}{values}").leak(),
        environment: vec![("ZK_ALLOC_TUNE", &*setting.join(",").leak())].leak(),
        confirms: confirms.leak(),
        colour: Colour::OTHER,
        ..ZK_ALLOC
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mechanism that no arm switches off would be missing from the ablation.
    #[test]
    fn the_two_sets_cover_every_constant() {
        let names = |set_name| set(set_name).unwrap().iter().map(|arm| arm.name).collect::<Vec<_>>().join(" ");
        let (ablation, constants) = (names(ABLATION), names(CONSTANTS_SET));
        for constant in CONSTANTS {
            let (name, unit) = (constant.name, constant.unit);
            assert!(constant.off.is_none() || ablation.contains(name), "{name}");
            assert!(unit == "0 or 1" || constants.contains(&format!("{name}={}", constant.value * 2)), "{name}");
        }
        assert_eq!(set("quick").map(|arms| arms.len()), None);
    }

    #[test]
    fn the_name_of_an_arm_sets_constants_that_it_must_confirm() {
        let arm = named("zk-alloc:max_resident_probes=0+headroom_part=never").unwrap();
        assert_eq!(arm.environment, [("ZK_ALLOC_TUNE", "max_resident_probes=0,headroom_part=18446744073709551615")]);
        assert_eq!(arm.confirms, [("max_resident_probes", "0"), ("headroom_part", "18446744073709551615")]);
        let values = ["", "none=1", "max_resident_probes", "max_resident_probes=x"];
        assert!(values.iter().all(|values| named(&format!("{PREFIX}{values}")).is_none()));
        assert!(named("max_resident_probes=1").is_none());
    }
}
