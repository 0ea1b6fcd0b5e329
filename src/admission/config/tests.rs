//! Files that are read, and what is said of wrong ones.

use super::*;
use std::collections::BTreeMap;

fn parse(plugins: &str, files: &[(&str, &str)]) -> Result<AdmissionConfig, String> {
    let text =
        format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n{plugins}");
    parse_whole(&text, files)
}

fn parse_whole(text: &str, files: &[(&str, &str)]) -> Result<AdmissionConfig, String> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let read = |path: &str| {
        let found = files.get(path).map(|text| text.as_bytes().to_vec());
        found.ok_or_else(|| "no such file".to_owned())
    };
    AdmissionConfig::parse(text.as_bytes(), &read).map_err(|error| {
        let source = std::error::Error::source(&error);
        source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
    })
}

const POD_SECURITY: &str = "apiVersion: pod-security.admission.config.k8s.io/v1beta1
kind: PodSecurityConfiguration
defaults: {enforce: baseline, enforce-version: v1.30, warn: ''}
exemptions: {usernames: [anna], namespaces: [free], runtimeClasses: [kata]}
";

fn errors_of(plugin: &str, configuration: &str) -> String {
    let text = format!("plugins: [{{name: {plugin}, configuration: {configuration}}}]");
    parse(&text, &[]).expect_err("it is wrong")
}

#[test]
fn a_plug_in_is_configured_in_the_file_or_beside_it() {
    let embedded = "plugins:
- name: ResourceQuota
  path: not-read.yaml
  configuration:
    apiVersion: resourcequota.admission.k8s.io/v1alpha1
    kind: Configuration
    limitedResources: [{resource: pods, matchContains: [pods]}]
- {name: PodSecurity, path: pod-security.yaml}
";
    let config = parse(embedded, &[("pod-security.yaml", POD_SECURITY)]).expect("it is good");
    assert!(!config.limited.is_empty());
    assert_eq!(config.without_effect, []);
    let pod_security = &config.pod_security;
    assert!(pod_security.exempts_namespace("free") && !pod_security.exempts_namespace("anna"));
    assert!(pod_security.exempts_user("anna") && pod_security.exempts_runtime_class("kata"));
    assert!(!pod_security.exempts_runtime_class(""));
    let shown = format!("{pod_security:?}");
    assert!(
        shown.contains("Baseline") && shown.contains("Minor(30)"),
        "{shown}"
    );
}

#[test]
fn a_file_without_entries_and_both_versions_are_good() {
    for version in ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"] {
        let text = format!("apiVersion: {version}\nkind: AdmissionConfiguration\n");
        parse_whole(&text, &[]).expect("it is good");
    }
    let text = "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: AdmissionConfiguration\n";
    let error = parse_whole(text, &[]).expect_err("upstream has no such version");
    assert!(
        error.contains("apiserver.config.k8s.io/v1alpha1"),
        "{error}"
    );
}

#[test]
fn entries_without_effect_are_told_and_not_read() {
    let text = "plugins:
- {name: Priority, path: missing.yaml}
- {name: ResourceQuota}
- {name: ResourceQuota, path: missing.yaml}
";
    let config = parse(text, &[]).expect("nothing is read");
    assert!(config.limited.is_empty());
    let told = config.without_effect.iter().map(ToString::to_string);
    let wanted = [
        r#"plug-in "Priority" takes no configuration here"#,
        r#"plug-in "ResourceQuota" is configured by an earlier entry"#,
    ];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

#[test]
fn wrong_files_are_refused_with_the_field() {
    for (plugins, said) in [
        ("plugin: []", "plugin: Forbidden: there is no such field"),
        ("plugins: {}", "plugins: Invalid value"),
        ("plugins: [{path: x}]", "plugins[0].name: Required value"),
        (
            "plugins: [{name: A, file: x}]",
            "plugins[0].file: Forbidden",
        ),
        ("plugins: [], plugins: []", "not YAML"),
        ("plugins: []\nplugins: []", "plugins"),
        (
            "plugins: [{name: PodSecurity, path: missing.yaml}]",
            "the configuration of PodSecurity: missing.yaml: no such file",
        ),
    ] {
        let error = parse(plugins, &[]).expect_err(plugins);
        assert!(error.contains(said), "{plugins}: {error}");
    }
    let beside = [("pod-security.yaml", "kind: PodSecurityConfiguration")];
    let error = parse(
        "plugins: [{name: PodSecurity, path: pod-security.yaml}]",
        &beside,
    );
    let error = error.expect_err("it has no version");
    let said = "the configuration of PodSecurity: pod-security.yaml: it is";
    assert!(error.contains(said), "{error}");
}

#[test]
fn wrong_levels_and_exemptions_are_refused_together() {
    let error = errors_of(
        "PodSecurity",
        "{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, \
         defaults: {enforce: strict, audit-version: '1.30', level: baseline}, \
         exemptions: {usernames: ['', bob, bob], namespaces: [a.b], runtimeClasses: [A, 7]}}",
    );
    for said in [
        "the configuration of PodSecurity: plugins[0].configuration: ",
        r#"defaults.enforce: Invalid value: "strict": must be one of privileged, baseline, restricted"#,
        r#"defaults.audit-version: Invalid value: "1.30": must be "latest" or "v1.x""#,
        "defaults.level: Forbidden",
        r#"exemptions.usernames[0]: Invalid value: "": username must not be empty"#,
        r#"exemptions.usernames[2]: Duplicate value: "bob""#,
        r#"exemptions.namespaces[0]: Invalid value: "a.b""#,
        r#"exemptions.runtimeClasses[0]: Invalid value: "A""#,
        "exemptions.runtimeClasses[1]: Invalid value: 7: must be a string",
    ] {
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn limited_resources_that_mean_nothing_are_refused() {
    let error = errors_of(
        "ResourceQuota",
        "{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [\
         {matchContains: [pods]}, {resource: pods, matchScopes: [\
         {scopeName: Class}, {scopeName: PriorityClass, operator: In}, \
         {scopeName: PriorityClass, operator: Like}, {scopeName: Terminating, operator: Like}]}]}",
    );
    for said in [
        "limitedResources[0].resource: Required value",
        r#"limitedResources[1].matchScopes[0].scopeName: Unsupported value: "Class""#,
        "limitedResources[1].matchScopes[1].values: Required value",
        r#"limitedResources[1].matchScopes[2].operator: Unsupported value: "Like""#,
    ] {
        assert!(error.contains(said), "{said}: {error}");
    }
    assert!(!error.contains("matchScopes[3]"), "{error}");
}
