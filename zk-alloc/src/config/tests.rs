use super::*;
use crate::os::Limits;

const MACHINE: Host = Host {
    limits: Limits { threads: 2, memory_bytes: 24 << 30, is_memory_grouped: false },
    huge_pages: HostHugePages::Available,
};

/// For each setting: its variable, a usable value of that variable, a program's settings with a different value, and that value as the
/// variable would give it.
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
    let environment = |variable| (variable == name).then(|| Value::new(value.as_bytes()));
    let config = Config::resolve(machine, environment, program, |_, warning| warnings.push(warning.to_string()));
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

/// The environment overrides the program, which overrides the default. The resolved settings show the origin of each value. A warning names
/// a bad value in the environment, and the value used instead.
#[test]
fn each_setting_has_its_value_from_the_first_source_with_a_good_one() {
    assert_eq!(EACH.map(|(name, ..)| name), VARIABLES[..EACH.len()]);
    assert_eq!(VARIABLES[EACH.len()], OFF.variable);
    assert_eq!(set("", "").to_string(), "all defaults");
    assert_eq!(set("", "").retain_bytes.value, 12 << 30);
    let bad = ["", "-1", "garbage", "1.5.", "1.5K", "9i", "Gi", "99999999999999999999", "18446744073709551615G"];
    for (name, value, program, in_code) in EACH {
        let by_program = resolve("", "", &program);
        assert_eq!((by_program.0.to_string(), by_program.1.len()), (format!("{name}={in_code} (program)"), 0));
        let by_both = resolve(name, value, &program);
        assert_eq!((by_both.0, by_both.1.len()), (set(name, value), 0));
        let text = by_both.0.to_string();
        assert!(text.starts_with(&format!("{name}=")) && text.ends_with(" (environment)"), "{text}");
        for value in bad {
            for (program, instead) in
                [(Settings::new(), "the default, "), (program, &*format!("what the program set, {in_code}"))]
            {
                let (settings, warnings) = resolve(name, value, &program);
                assert_eq!(settings, resolve("", "", &program).0, "{name}={value}");
                let [warning] = &*warnings else { panic!("{name}={value}: {warnings:?}") };
                assert!(warning.starts_with(&format!("{name}={value:?} is not ")), "{warning}");
                assert!(warning.contains(&format!("; using {instead}")), "{warning}");
            }
        }
    }
}

#[test]
fn numbers_of_bytes_may_have_a_unit_and_times_a_fraction() {
    let bytes = |text| set("ZK_ALLOC_MIN_BYTES", text).min_bytes.value;
    assert_eq!(["4096", "64k", "2G", " 512Mi "].map(bytes), [4096, 64 << 10, 2 << 30, 512 << 20]);
    let time = |text| set("ZK_ALLOC_RETAIN_FOR", text).retain_for;
    let ever = Duration::MAX;
    for (text, time_set) in [("10", 10_000_000_000), (" 0.25 ", 250_000_000), ("0", 0), ("0.000000001", 1)] {
        assert_eq!(time(text).value, Duration::from_nanos(time_set));
    }
    assert_eq!((set("", "").retain_for.value, time("ever").value), (Duration::from_secs(8), ever));
    for value in ["1e3", "inf", "nan", "5s", ".", "1000000000"] {
        assert_eq!(resolve("ZK_ALLOC_RETAIN_FOR", value, &Settings::new()).1.len(), 1, "{value}");
    }
    for (time, text) in [(Duration::from_millis(250), "0.25"), (Duration::from_nanos(1), "0.000000001"), (ever, "ever")]
    {
        let (settings, _) = resolve("", "", &Settings::new().retain_for(time));
        assert_eq!(settings.to_string(), format!("ZK_ALLOC_RETAIN_FOR={text} (program)"));
    }
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
    // No other test in this process reads these constants.
    assert_eq!(set("max_postponed=7, min_span_bytes=2M"), Ok(()));
    assert_eq!((max_postponed(), min_span_bytes()), (7, 2 << 20));
    assert_eq!(set("no_such=1,max_postponed=100,min_span_bytes=64M"), Err("no_such=1"));
    assert_eq!((in_force("max_postponed"), in_force("min_span_bytes")), (Some(100), Some(64 << 20)));
    for text in ["", "max_postponed", "max_postponed=", "max_postponed=-1", "max_postponed=1x"] {
        assert_eq!(set(text), Err(text));
    }
    assert_eq!(parse_constant("never"), Some(usize::MAX));
}
