//! The priority classes of the system: a deletion of one is refused, a deletion of all takes them.

use crate::site::{Site, on_paused_clock, request};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, json};
use polyplane_plane::Key;
use polyplane_registry::{ResourceRequest, Verb};

const GROUP: &str = "scheduling.k8s.io";
const RESOURCE: &str = "priorityclasses";

async fn put(site: &Site, name: &str, value: i64) {
    let row = site.tenant.base.stored(GROUP, RESOURCE);
    let class = json!({"metadata": {"name": name, "uid": name}, "value": value});
    site.put_whole(row.expect("it is built in"), class).await;
}

async fn delete(
    site: &Site,
    verb: Verb,
    name: Option<&str>,
    query: &[(&str, &str)],
) -> Result<(), ApiError> {
    let query = query.iter().map(|(name, value)| (*name, *value));
    let request = ResourceRequest {
        group: GROUP.into(),
        name: name.map(Str::from),
        query: query.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        ..request(verb, RESOURCE)
    };
    let answer = site.registry.handle(&site.tenant, &request).await;
    answer.map(drop)
}

fn is_stored(site: &Site, name: &str) -> bool {
    let key = Key::new(GROUP, RESOURCE, None, name);
    site.tenant.plane.snapshot().get(&key).is_some()
}

#[test]
fn only_a_collection_takes_priority_classes_of_the_system() {
    on_paused_clock(async {
        let site = Site::open().await;
        put(&site, "system-node-critical", 2_000_001_000).await;
        put(&site, "system-own", 1).await;
        // One of them is not there, which upstream does not look for.
        for name in ["system-node-critical", "system-cluster-critical"] {
            for query in [("gracePeriodSeconds", "0"), ("dryRun", "All")] {
                let refused = delete(&site, Verb::Delete, Some(name), &[query]).await;
                let refused = refused.expect_err("it stays");
                assert_eq!(refused.code, 403);
                let text = format!(
                    "priorityclasses.scheduling.k8s.io \"{name}\" is forbidden: this is a system priority class and cannot be deleted"
                );
                assert_eq!(refused.message, text);
            }
        }
        assert!(is_stored(&site, "system-node-critical"));

        let own = delete(&site, Verb::Delete, Some("system-own"), &[]).await;
        own.expect("it is not of the system");
        assert!(!is_stored(&site, "system-own"));

        let all = delete(&site, Verb::DeleteCollection, None, &[]).await;
        all.expect("upstream deletes them too");
        assert!(!is_stored(&site, "system-node-critical"));
    });
}
