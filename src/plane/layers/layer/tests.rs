//! Templates and their values.

use super::*;
use crate::layers::chain::Chain;
use crate::layers::template_values::{RenderCache, TemplateInputs, TemplateValues, uid_seed};
use crate::version::Version;

fn layer_object(name: &str, data: &str) -> LayerObject {
    let head = format!(r#"{{"metadata":{{"name":"{name}","uid":"${{UID}}","#);
    let labels = r#""labels":{"l":"1"}"#;
    let body = format!(
        r#"{head}"creationTimestamp":"${{BIRTH_TIME}}",{labels}}},"data":{{"k":"{data}"}}}}"#
    );
    let start = body.find(r#"{"l""#).expect("it has labels");
    LayerObject {
        key: Key::new("", "configmaps", Some("kube-system"), name),
        object: NewObject {
            version_slot: head.len(),
            labels: Some(start..start + 9),
            body: body.into(),
            storage_version: "v1".into(),
            expires: None,
            flags: crate::Flags::NONE,
        },
    }
}

fn template_values_of(
    layer: &Arc<Layer>,
    plane: &str,
    params: &[(&str, &str)],
) -> Arc<TemplateValues> {
    let birth = Version::from_raw(77 << 8);
    let params = params
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    TemplateValues::new(TemplateInputs {
        birth,
        birth_time: "2026-01-01T00:00:00Z".into(),
        uid_seed: &uid_seed(b"secret", plane, birth),
        params: &params,
        chain: Chain::new(Arc::clone(layer), Vec::new()),
        cache: &RenderCache::new(&Arc::default()),
    })
}

fn render(layer: &Arc<Layer>, template_values: &Arc<TemplateValues>, name: &str) -> String {
    let key = Key::new("", "configmaps", Some("kube-system"), name);
    let entry = layer.resources().get(&key).expect("the layer has it");
    let object = crate::ObjectRef::new(Arc::clone(entry), Arc::clone(template_values));
    assert_eq!(object.labels_json(), br#"{"l":"1"}"#);
    String::from_utf8(object.body().to_vec()).expect("bodies are text")
}

#[test]
fn placeholders_become_the_planes_own() {
    let layer = Layer::build(vec![
        layer_object("ca", "${SERVING_CA}"),
        layer_object("ref", "of ${UID:/configmaps/kube-system/ca}, ${not one}"),
    ])
    .expect("both are fine");
    assert_eq!(layer.len(), 2);
    assert_eq!(layer.params().collect::<Vec<_>>(), ["SERVING_CA"]);
    let template_values = template_values_of(&layer, "a", &[("SERVING_CA", "-----\n<\"x\">")]);
    let ca = render(&layer, &template_values, "ca");
    let value: serde_json::Value = serde_json::from_str(&ca).expect("it is JSON");
    assert_eq!(value["data"]["k"], "-----\n<\"x\">");
    assert_eq!(value["metadata"]["resourceVersion"], (77 << 8).to_string());
    assert_eq!(
        value["metadata"]["creationTimestamp"],
        "2026-01-01T00:00:00Z"
    );
    let uid = value["metadata"]["uid"].as_str().expect("it has a uid");
    assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
    assert!("89ab".contains(&uid[19..20]));
    let other = render(&layer, &template_values, "ref");
    assert!(
        other.contains(&format!("of {uid}, ${{not one}}")),
        "{other}"
    );
    assert_eq!(render(&layer, &template_values, "ca"), ca);

    let elsewhere = template_values_of(&layer, "b", &[("SERVING_CA", "x")]);
    assert!(!render(&layer, &elsewhere, "ca").contains(uid));
}

#[test]
fn the_hash_is_that_of_the_content() {
    let one = || layer_object("a", "1");
    let two = || layer_object("b", "2");
    let build = |objects| Layer::build(objects).expect("fine").hash().clone();
    assert_eq!(build(vec![one(), two()]), build(vec![two(), one()]));
    assert_ne!(build(vec![one()]), build(vec![layer_object("a", "2")]));
    assert_eq!(build(vec![one()]).0.len(), 64);
}

#[test]
fn what_cannot_be_filled_is_refused() {
    let twice = vec![layer_object("a", "1"), layer_object("a", "2")];
    assert!(matches!(Layer::build(twice), Err(LayerError::Twice(_))));
    let nobody = vec![layer_object("a", "${UID:/configmaps/ns/x}")];
    assert!(matches!(
        Layer::build(nobody),
        Err(LayerError::UnknownUid { .. })
    ));
    let mut labels = layer_object("a", "1");
    labels.object.labels = Some(0..labels.object.body.len());
    assert!(matches!(
        Layer::build(vec![labels]),
        Err(LayerError::FilledLabels(_))
    ));
}
