//! Properties and recorded vectors of this module.

use super::*;
use crate::value::Value;
use crate::vectors::{assert_none, compare, vectors};

fn complaints(rule: &str, text: &str) -> Vec<String> {
    match rule {
        "dns1123_label" => dns1123_label(text),
        "dns1123_subdomain" => dns1123_subdomain(text),
        "dns1123_caseless" => dns1123_subdomain_caseless(text),
        "dns1123_underscore" => dns1123_subdomain_with_underscore(text),
        "dns1035_label" => dns1035_label(text),
        "wildcard" => wildcard_dns1123_subdomain(text),
        "qualified" => qualified_name(text),
        "label_value" => label_value(text),
        "path" => path_segment_name(text),
        "path_prefix" => path_segment_prefix(text),
        "port" => port_name(text),
        "c" => c_identifier(text),
        "percent" => percent(text),
        "header" => http_header_name(text),
        "env" => env_var_name(text),
        "relaxed_env" => relaxed_env_var_name(text),
        "config" => config_map_key(text),
        "reason" => condition_reason(text),
        "decimal" => decimal_integer(text),
        "ip" => ip_complaints(text),
        "ip_legacy" => legacy_ip_complaints(text, Strictness::Sloppy),
        "cidr" => cidr_complaints(text),
        "cidr_legacy" => legacy_cidr_complaints(text, Strictness::Sloppy),
        other => panic!("no rule {other}"),
    }
}

#[test]
fn every_rule_complains_as_upstream_does() {
    let all = vectors("names");
    let mut differences = Vec::new();
    for vector in &all {
        let (rule, text) = (vector.str_at(&["rule"]), vector.str_at(&["in"]));
        let go: Vec<&str> = vector
            .items_at(&["out"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        compare(
            &mut differences,
            &format!("{rule} {text}"),
            &go.join(" | "),
            &complaints(rule, text).join(" | "),
        );
    }
    assert_none("names", all.len(), &differences);
}

#[test]
fn a_generated_name_has_a_fair_suffix_and_fits_a_label() {
    assert_eq!(
        generated_suffix(&[0, 255, 26, 27, 1, 2, 3]).as_deref(),
        Some("b9bcd")
    );
    assert_eq!(generated_suffix(&[243, 244, 0, 1, 2, 3]), None);
    assert_eq!(
        generated_name(&"a".repeat(70), "bcdfg").len(),
        DNS_LABEL_BYTES_MAX
    );
    assert_eq!(generated_name("web-", "bcdfg"), "web-bcdfg");
    assert_eq!(NameRule::DnsLabel.prefix("web-"), Vec::<String>::new());
    assert!(!NameRule::DnsLabel.name("web-").is_empty());
}

#[test]
fn the_beginning_of_a_generated_name_may_be_checked_as_a_whole() {
    for (prefix, part, whole) in [
        ("a", 0, 0),
        ("a-", 0, 0),
        (".", 0, 1),
        ("..", 0, 1),
        ("...", 0, 0),
        ("a/", 1, 1),
    ] {
        let found = |rule: NameRule| rule.prefix(prefix).len();
        assert_eq!(found(NameRule::PathSegment), part, "{prefix}");
        assert_eq!(found(NameRule::WholePathSegment), whole, "{prefix}");
        assert_eq!(found(NameRule::GeneratedSubdomain), 0, "{prefix}");
    }
}
