use super::*;
use crate::os::Limits;

const MACHINE: Host = Host {
    limits: Limits { threads: 2, memory_bytes: 24 << 30, is_memory_grouped: false },
    huge_pages: HostHugePages::Available,
};

/// Each setting: its variable, a usable value, another value as the program sets it, and the latter as the environment would have it.
const EACH: [(&str, &str, Settings, &str); 11] = [
    ("ZK_ALLOC_MIN_BYTES", "4K", Settings::new().min_bytes(100), "100"),
    ("ZK_ALLOC_SLAB_GB", "8", Settings::new().thread_capacity_bytes(3 << 30), "3"),
    ("ZK_ALLOC_RETAIN_BYTES", "2G", Settings::new().retain_bytes(0), "0"),
    ("ZK_ALLOC_RETAIN_FOR", "0.5", Settings::new().retain_for(Duration::from_secs(60)), "60"),
    ("ZK_ALLOC_MAX_BYTES", "1T", Settings::new().max_bytes(1 << 20), "1048576"),
    ("ZK_ALLOC_MAX_HARD", "0", Settings::new().max_hard(true), "1"),
    ("ZK_ALLOC_THP", "never", Settings::new().huge_pages(HugePages::Always), "always"),
    ("ZK_ALLOC_LAZY_ZERO_BYTES", "4M", Settings::new().lazy_zero_bytes(1 << 30), "1073741824"),
    ("ZK_ALLOC_SANDBOX", "0", Settings::new().sandbox(true), "1"),
    ("ZK_ALLOC_BACKGROUND", "0", Settings::new().background_thread(true), "1"),
    ("ZK_ALLOC_TRACE_ESCAPED", "0", Settings::new().trace_escaped(true), "1"),
];

fn resolve_on(machine: Host, name: &'static str, value: &str, program: &Settings) -> (Config, Vec<String>) {
    let mut warnings = Vec::new();
    let config = Config::resolve(
        machine,
        |variable| (variable == name).then(|| Value::new(value.as_bytes())),
        program,
        |_, warning| warnings.push(warning.to_string()),
    );
    (config, warnings)
}

fn resolve(name: &'static str, value: &str, program: &Settings) -> (SettingsInForce, Vec<String>) {
    let (config, warnings) = resolve_on(MACHINE, name, value, program);
    (config.settings, warnings)
}

fn set(name: &'static str, value: &str) -> SettingsInForce {
    let (settings, warnings) = resolve(name, value, &Settings::new());
    assert!(warnings.is_empty(), "{warnings:?}");
    settings
}

#[test]
fn unset_settings_have_their_defaults_and_no_warning() {
    let settings = set("", "");
    assert_eq!(settings.min_bytes.value, 0);
    assert_eq!(settings.retain_bytes.value, 12 << 30);
    assert_eq!(settings.huge_pages.value, HugePages::Auto);
    assert_eq!(settings.to_string(), "all defaults");
}

#[test]
fn every_setting_of_the_table_is_tested() {
    assert_eq!(EACH.map(|(name, ..)| name), VARIABLES[..EACH.len()]);
    assert_eq!(VARIABLES[EACH.len()], OFF.variable);
}

#[test]
fn numbers_of_bytes_may_have_a_unit() {
    assert_eq!(["4096", "64k", "2G", "512Mi"].map(parse_bytes), [4096, 64 << 10, 2 << 30, 512 << 20].map(Some));
    assert_eq!(set("ZK_ALLOC_MIN_BYTES", " 64k ").min_bytes.value, 64 << 10);
}

/// The resolved settings also tell the origin of each value.
#[test]
fn the_environment_outweighs_the_program_which_outweighs_the_default() {
    for (name, value, program, in_code) in EACH {
        let (by_program, warnings) = resolve("", "", &program);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(by_program.to_string(), format!("{name}={in_code} (program)"));
        let (by_both, warnings) = resolve(name, value, &program);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(by_both, set(name, value));
        let text = by_both.to_string();
        assert!(text.starts_with(&format!("{name}=")) && text.ends_with(" (environment)"), "{text}");
    }
    let all = Settings::new().min_bytes(1).max_bytes(2).trace_escaped(true);
    let (settings, _) = resolve("ZK_ALLOC_MAX_BYTES", "3", &all);
    assert_eq!(
        settings.to_string(),
        "ZK_ALLOC_MIN_BYTES=1 (program), ZK_ALLOC_MAX_BYTES=3 (environment), ZK_ALLOC_TRACE_ESCAPED=1 (program)"
    );
}

#[test]
fn warning_names_each_bad_value_and_the_value_used_instead() {
    let overflowing = "99999999999999999999";
    for (name, _, program, in_code) in EACH {
        for value in ["", "-1", "garbage", "1.5", "1.5K", "9i", "Gi", overflowing, "18446744073709551615G"] {
            if (name, value) == ("ZK_ALLOC_RETAIN_FOR", "1.5") {
                continue; // One and a half seconds can be used.
            }
            for (program, instead) in [
                (Settings::new(), "using the default, "),
                (program, &*format!("using what the program set, {in_code}")),
            ] {
                let (settings, warnings) = resolve(name, value, &program);
                assert_eq!(settings, resolve("", "", &program).0, "{name}={value}");
                assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
                assert!(warnings[0].starts_with(&format!("{name}={value:?} is not ")), "{warnings:?}");
                assert!(warnings[0].contains(instead), "{warnings:?}");
            }
        }
    }
}

#[test]
fn times_are_seconds_and_may_have_a_fraction() {
    let of = |value| set("ZK_ALLOC_RETAIN_FOR", value).retain_for.value;
    assert_eq!(set("", "").retain_for.value, Duration::from_secs(8));
    assert_eq!(of("10"), Duration::from_secs(10));
    assert_eq!(of(" 0.25 "), Duration::from_millis(250));
    assert_eq!((of("0"), of("ever")), (Duration::ZERO, Duration::MAX));
    for value in ["", "-1", "1e3", "inf", "nan", "5s", ".", "1.2.3", "1000000000", "99999999999999999999"] {
        let (settings, warnings) = resolve("ZK_ALLOC_RETAIN_FOR", value, &Settings::new());
        assert_eq!((settings.retain_for.value, warnings.len()), (Duration::from_secs(8), 1), "{value}: {warnings:?}");
        assert!(warnings[0].ends_with("using the default, 8"), "{warnings:?}");
    }
    for (time, text) in [(Duration::from_millis(250), "0.25"), (Duration::from_nanos(1), "0.000000001")] {
        let (settings, _) = resolve("", "", &Settings::new().retain_for(time));
        assert_eq!(settings.to_string(), format!("ZK_ALLOC_RETAIN_FOR={text} (program)"));
        assert_eq!(of(text), time);
    }
    assert_eq!(
        resolve("", "", &Settings::new().retain_for(Duration::MAX)).0.to_string(),
        "ZK_ALLOC_RETAIN_FOR=ever (program)"
    );
}

/// A value out of bounds is refused if the environment sets it. If the program sets it, the nearest bound is used.
#[test]
fn values_set_in_code_are_clamped_to_their_bounds() {
    let capacity = |bytes| resolve("", "", &Settings::new().thread_capacity_bytes(bytes)).0.thread_capacity_bytes;
    for (bytes, gib) in [(0, 1), (1, 1), (1 << 30, 1), ((1 << 30) + 1, 2), (64 << 40, 64 << 10), (usize::MAX, 64 << 10)]
    {
        assert_eq!((capacity(bytes).value, capacity(bytes).origin), (gib << 30, Origin::Program), "{bytes}");
    }
    let time = |seconds| resolve("", "", &Settings::new().retain_for(Duration::from_secs(seconds))).0.retain_for.value;
    assert_eq!(time(999_999_999), Duration::from_secs(999_999_999));
    assert_eq!([time(1_000_000_000), time(u64::MAX)], [Duration::MAX; 2]);
    assert_eq!(
        resolve("ZK_ALLOC_SLAB_GB", "0", &Settings::new()).1,
        ["ZK_ALLOC_SLAB_GB=\"0\" is not a whole number of GiB, at least 1; using the default, 32"]
    );
}

#[test]
fn huge_runs_are_zeroed_lazily_on_hosts_with_many_threads() {
    let of = |threads| {
        let (config, _) =
            resolve_on(Host { limits: Limits { threads, ..MACHINE.limits }, ..MACHINE }, "", "", &Settings::new());
        config.settings.lazy_zero_bytes.value
    };
    assert_eq!([of(1), of(4)], [usize::MAX; 2]);
    assert_eq!([of(5), of(64)], [128 << 20; 2]);
    assert_eq!(set("ZK_ALLOC_LAZY_ZERO_BYTES", "4M").lazy_zero_bytes.value, 4 << 20);
}

#[test]
fn huge_pages_are_not_requested_where_they_are_unavailable_or_costly() {
    use HostHugePages as Says;
    use HugePagesOutcome::{Always, Auto, Avoided, Never, Unavailable};
    let of_all = |value| {
        [Says::Available, Says::Costly, Says::Unavailable].map(|huge_pages| {
            let machine = Host { huge_pages, ..MACHINE };
            resolve_on(machine, "ZK_ALLOC_THP", value, &Settings::new()).0.huge_pages
        })
    };
    assert_eq!(of_all("auto"), [Auto, Avoided, Unavailable]);
    assert_eq!(of_all("always"), [Always, Always, Unavailable]);
    assert_eq!(of_all("never"), [Never; 3]);
}

#[test]
#[cfg(feature = "tune")]
fn constants_are_set_by_name_and_a_part_that_sets_none_is_reported() {
    use tuning::{in_force, max_postponed, min_span_bytes};
    let set = |text| tuning::set(text, parse_constant);
    // No other test of this process reads these.
    assert_eq!(set("max_postponed=7, min_span_bytes=2M"), Ok(()));
    assert_eq!((max_postponed(), min_span_bytes()), (7, 2 << 20));
    assert_eq!(set("no_such=1,max_postponed=100,min_span_bytes=64M"), Err("no_such=1"));
    assert_eq!((in_force("max_postponed"), in_force("min_span_bytes")), (Some(100), Some(64 << 20)));
    for text in ["", "max_postponed", "max_postponed=", "max_postponed=-1", "max_postponed=1x"] {
        assert_eq!(set(text), Err(text));
    }
    assert_eq!(parse_constant("never"), Some(usize::MAX));
}
