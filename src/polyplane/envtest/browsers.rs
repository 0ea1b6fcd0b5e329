//! The flags of what browsers get.

use crate::envtest::flags::Flags;
use crate::envtest::settings::Problems;
use polyplane_server::BrowserOptions;

/// The flags.
pub(super) const FLAGS: [&str; 2] = [
    "cors-allowed-origins",
    "strict-transport-security-directives",
];

/// Reads what the flags say.
pub(super) fn read(flags: &Flags, problems: &mut Problems) -> BrowserOptions {
    let list = |flag: &str| {
        let given = flags.all(flag).iter().filter(|text| !text.is_empty());
        let items = given.flat_map(|text| text.split(','));
        items.map(str::to_owned).collect()
    };
    let [origins, directives] = FLAGS;
    let options = BrowserOptions {
        hsts_directives: list(directives),
        cors_allowed_origins: list(origins),
    };
    for problem in options.complete().err().unwrap_or_default() {
        problems.add(problem);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::kube_apiserver;

    #[test]
    fn lists_keep_their_empty_items_and_mistakes_are_named() {
        let read_given = |given: &[&str]| {
            let arguments = given.iter().map(|text| (*text).to_owned());
            let flags = kube_apiserver::FLAGS.parse(arguments).expect("flags");
            let mut problems = Problems::default();
            (read(&flags, &mut problems), problems.is_empty())
        };
        let directives = "--strict-transport-security-directives=max-age=1,preload";
        let origins = [
            "--cors-allowed-origins=^a$",
            "--cors-allowed-origins=//b:,^c$",
        ];
        let (options, is_sound) = read_given(&[directives, origins[0], origins[1]]);
        assert!(is_sound);
        assert_eq!(options.hsts_directives, ["max-age=1", "preload"]);
        assert_eq!(options.cors_allowed_origins, ["^a$", "//b:", "^c$"]);
        assert!(read_given(&["--cors-allowed-origins="]).1);
        assert!(!read_given(&["--cors-allowed-origins=^a$,,^b$"]).1);
        assert!(!read_given(&["--strict-transport-security-directives=always"]).1);
    }
}
