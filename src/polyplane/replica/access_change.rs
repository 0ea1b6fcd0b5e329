//! Finds the requests that take a right to use a plane away. They are answered only once no replica
//! honours that right any more.

use crate::replica::plane_directory::PlaneDirectory;
use polyplane_batteries::polyplane::control_plane::{DirectoryRecord, GROUP, RESOURCE};
use polyplane_ownership::ROOT;
use polyplane_plane::{Flags, Key, Version};
use polyplane_registry::{ResourceRequest, Tenant, Verb};

/// A request under way that may take a right away.
pub struct AccessChange {
    /// The plane's object; `None` if the request is about several.
    key: Option<Key>,
    before: Option<Access>,
    /// Whether the object was so old when the request began that every replica knew it.
    was_known: bool,
}

/// What a plane's object says about who may use the plane.
struct Access {
    id: String,
    says: Vec<u8>,
    is_deleting: bool,
    /// `None` while the write that made the object is under way.
    version: Option<Version>,
}

impl Access {
    fn says_as(&self, other: &Self) -> bool {
        self.id == other.id && self.says == other.says && self.is_deleting == other.is_deleting
    }
}

impl AccessChange {
    /// Returns the change that a request may make; `None` if it can make none.
    pub fn begin(
        directory: &PlaneDirectory,
        tenant: &Tenant,
        request: &ResourceRequest,
    ) -> Option<Self> {
        let changes = matches!(
            request.verb,
            Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
        );
        if !changes || request.resource != RESOURCE || request.group != GROUP {
            return None;
        }
        if tenant.plane.id() != ROOT {
            return None;
        }
        let name = request.name.as_deref();
        let key = name.map(|name| Key::new(GROUP, RESOURCE, None, name));
        let before = key.as_ref().and_then(|key| access(tenant, key));
        let base = directory.planes.numbering().base;
        let was_known = before.as_ref().is_none_or(|access| {
            let put = access.version.map(|version| version.revision(base));
            put.is_some_and(|put| directory.freshness.is_settled(put))
        });
        Some(Self {
            key,
            before,
            was_known,
        })
    }

    /// Returns whether the plane's object says something else by now than every replica knows. If
    /// the object was young when the request began, the request may repeat one whose answer was
    /// lost.
    pub fn has_happened(&self, tenant: &Tenant) -> bool {
        let (Some(key), Some(before)) = (&self.key, &self.before) else {
            return self.key.is_none();
        };
        !self.was_known || access(tenant, key).is_none_or(|after| !after.says_as(before))
    }
}

fn access(tenant: &Tenant, key: &Key) -> Option<Access> {
    let object = tenant.plane.accepted().get(key)?;
    let record = DirectoryRecord::read(&object.body())?;
    Some(Access {
        id: record.id,
        says: record.access,
        is_deleting: object.flags().has(Flags::DELETING),
        version: object.version(),
    })
}
