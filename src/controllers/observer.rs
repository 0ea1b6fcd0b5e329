//! The observer of writes, which queues the work that each one causes.
//!
//! The committer waits for it before it goes on with the writes of any plane. So what has to look at more than the
//! object that was written and a few others belongs into a reconciler.

use crate::token_secrets::DeletedSecret;
use crate::work::{Reconcilers, WorkItem};
use crate::{
    api_services, authentication_cas, certificates, control_planes, definitions, flow_schemas,
    namespaces, protection, quotas, restore, roles, service_ranges, token_secrets,
};
use polyplane_apimachinery::Str;
use polyplane_plane::{Flags, Key, ObjectRef};
use polyplane_registry::services::Removal;
use polyplane_registry::{Observer, Resource, Tenant};
use std::sync::Arc;

/// Queues the work that each write causes. The registry calls this after each write.
pub struct WriteObserver(pub Arc<Reconcilers>);

impl Observer for WriteObserver {
    fn missed(&self, tenant: &Tenant) {
        self.0.add(tenant, WorkItem::Survey);
    }

    fn written(&self, tenant: &Tenant, row: &Resource, object: &ObjectRef, removal: Removal) {
        let key = object.key();
        let name = || Str::from(key.name());
        let gone = removal == Removal::Gone;
        match (row.group.as_str(), row.name.as_str()) {
            ("", "namespaces") if object.flags().has(Flags::TERMINATING) && !gone => {
                self.0.add(tenant, WorkItem::Namespace(name()));
            }
            (control_planes::GROUP, control_planes::RESOURCE)
                if object.flags().has(Flags::DELETING) && !gone =>
            {
                self.0.add(tenant, WorkItem::ControlPlane(name()));
            }
            _ => {}
        }
        // Whether any rules are stale is for the reconciler to find out: the next commit waits for this.
        if roles::is_source(&row.group, &row.name) {
            self.0.add(tenant, WorkItem::Aggregation);
        }
        if flow_schemas::is_source(&row.group, &row.name) {
            self.0.add(tenant, WorkItem::FlowSchemas);
        }
        for name in definitions::touched(tenant, row, object, gone) {
            self.0.add(tenant, WorkItem::Definition(name));
        }
        if api_services::is_source(&row.group, &row.name) {
            self.0.add(tenant, WorkItem::ApiServices);
        }
        if authentication_cas::is_subject(key) {
            self.0.add(tenant, WorkItem::AuthenticationCas);
        }
        if service_ranges::is_subject(key) && service_ranges::has_work(tenant) {
            self.0.add(tenant, WorkItem::ServiceRanges);
        }
        if let Some(namespace) = quotas::touched(tenant, key) {
            self.0.add(tenant, WorkItem::Quotas(namespace.into()));
        }
        for key in protection::touched(tenant, object, gone) {
            self.0.add(tenant, WorkItem::Protected(key));
        }
        if let Some(set) = protection::freed(tenant, object, gone) {
            self.0.add(tenant, WorkItem::ProtectedOf(set));
        }
        self.0.tokens_written(tenant, object, gone);
        if certificates::is_request(key) && !gone {
            self.0.add_certificate(tenant, name());
        }
        if certificates::may_be_decided(tenant, key) {
            self.0.add(tenant, WorkItem::Certificates);
        }
        for work in self.0.dependents.written(tenant, object, removal) {
            self.0.add(tenant, WorkItem::Belonging(work));
        }
        match key.namespace() {
            Some(namespace) if gone => self.0.gone_from_namespace(tenant, key, namespace),
            Some(namespace) if object.flags().has(Flags::DELETING) => {
                self.0.changed_in_namespace(tenant, namespace);
            }
            // The write may have damaged the object, so check and correct it.
            Some(namespace) if row.group.is_empty() && restore::is_namespace_content(key) => {
                self.0
                    .add(tenant, WorkItem::NamespaceContent(namespace.into()));
            }
            Some(_) | None => {}
        }
        let absent = || tenant.plane.snapshot().get(key).is_none();
        if self.0.is_restored(key) && absent() {
            self.0.add(tenant, WorkItem::Bootstrap(key.clone()));
        }
    }
}

impl Reconcilers {
    fn tokens_written(self: &Arc<Self>, tenant: &Tenant, object: &ObjectRef, gone: bool) {
        for key in token_secrets::touched(tenant, object, gone) {
            self.add(tenant, WorkItem::TokenSecret(key));
        }
        if let Some(deleted) = DeletedSecret::of(object, gone) {
            self.add(tenant, WorkItem::DeletedSecret(deleted));
        }
        if token_secrets::starts_tracking(tenant, object, gone) {
            self.add(tenant, WorkItem::TokenTracking);
        }
    }

    /// The conditions of a namespace that is being deleted say which finalizers are left in it.
    fn changed_in_namespace(self: &Arc<Self>, tenant: &Tenant, namespace: &str) {
        if namespaces::terminating(tenant, namespace).is_some() {
            self.add(tenant, WorkItem::Namespace(namespace.into()));
        }
    }

    fn gone_from_namespace(self: &Arc<Self>, tenant: &Tenant, key: &Key, namespace: &str) {
        let cut = tenant.plane.snapshot();
        if cut.get(key).is_some() {
            return;
        }
        let holder = cut.get(&Key::new("", "namespaces", None, namespace));
        match holder {
            Some(holder) if holder.flags().has(Flags::TERMINATING) => {
                self.add(tenant, WorkItem::Namespace(namespace.into()));
            }
            Some(_) if restore::is_namespace_content(key) => {
                self.add(tenant, WorkItem::NamespaceContent(namespace.into()));
            }
            _ => {}
        }
    }
}
