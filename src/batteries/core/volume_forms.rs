//! PersistentVolumes and claims as texts show upstream's internal structures of them.

use crate::shared::go_form::{GoForm, GoStruct, field, plain};

/// Which nodes reach a volume.
pub const NODE_AFFINITY: GoStruct = &[field(
    "required",
    "Required",
    GoForm::Pointer(NODE_SELECTOR),
)];

const NODE_SELECTOR: GoStruct = &[field(
    "nodeSelectorTerms",
    "NodeSelectorTerms",
    GoForm::List(NODE_SELECTOR_TERM),
)];

const NODE_SELECTOR_TERM: GoStruct = &[
    field(
        "matchExpressions",
        "MatchExpressions",
        GoForm::List(NODE_SELECTOR_REQUIREMENT),
    ),
    field(
        "matchFields",
        "MatchFields",
        GoForm::List(NODE_SELECTOR_REQUIREMENT),
    ),
];

const NODE_SELECTOR_REQUIREMENT: GoStruct = &[
    plain("key", "Key", "\"\""),
    plain("operator", "Operator", "\"\""),
    plain("values", "Values", "null"),
];

/// What a claim wishes.
pub const CLAIM_SPEC: GoStruct = &[
    plain("accessModes", "AccessModes", "null"),
    field(
        "selector",
        "Selector",
        GoForm::Tagged(&["matchLabels", "matchExpressions"]),
    ),
    field(
        "resources",
        "Resources",
        GoForm::Struct(VOLUME_RESOURCE_REQUIREMENTS),
    ),
    plain("volumeName", "VolumeName", "\"\""),
    plain("storageClassName", "StorageClassName", "null"),
    plain("volumeMode", "VolumeMode", "null"),
    field(
        "dataSource",
        "DataSource",
        GoForm::Pointer(TYPED_LOCAL_OBJECT_REFERENCE),
    ),
    field(
        "dataSourceRef",
        "DataSourceRef",
        GoForm::Pointer(TYPED_OBJECT_REFERENCE),
    ),
    plain(
        "volumeAttributesClassName",
        "VolumeAttributesClassName",
        "null",
    ),
];

const TYPED_OBJECT_REFERENCE: GoStruct = &[
    plain("apiGroup", "APIGroup", "null"),
    plain("kind", "Kind", "\"\""),
    plain("name", "Name", "\"\""),
    plain("namespace", "Namespace", "null"),
];

const TYPED_LOCAL_OBJECT_REFERENCE: GoStruct = &[
    plain("apiGroup", "APIGroup", "null"),
    plain("kind", "Kind", "\"\""),
    plain("name", "Name", "\"\""),
];

const VOLUME_RESOURCE_REQUIREMENTS: GoStruct = &[
    plain("limits", "Limits", "null"),
    plain("requests", "Requests", "null"),
];

/// The sources of a volume.
pub const VOLUME_SOURCE: GoStruct = &[
    field(
        "gcePersistentDisk",
        "GCEPersistentDisk",
        GoForm::Pointer(GCEPERSISTENT_DISK_VOLUME_SOURCE),
    ),
    field(
        "awsElasticBlockStore",
        "AWSElasticBlockStore",
        GoForm::Pointer(AWSELASTIC_BLOCK_STORE_VOLUME_SOURCE),
    ),
    field(
        "hostPath",
        "HostPath",
        GoForm::Pointer(HOST_PATH_VOLUME_SOURCE),
    ),
    field(
        "glusterfs",
        "Glusterfs",
        GoForm::Pointer(GLUSTERFS_PERSISTENT_VOLUME_SOURCE),
    ),
    field("nfs", "NFS", GoForm::Pointer(NFSVOLUME_SOURCE)),
    field("rbd", "RBD", GoForm::Pointer(RBDPERSISTENT_VOLUME_SOURCE)),
    field(
        "iscsi",
        "ISCSI",
        GoForm::Pointer(ISCSIPERSISTENT_VOLUME_SOURCE),
    ),
    field(
        "cinder",
        "Cinder",
        GoForm::Pointer(CINDER_PERSISTENT_VOLUME_SOURCE),
    ),
    field(
        "cephfs",
        "CephFS",
        GoForm::Pointer(CEPH_FSPERSISTENT_VOLUME_SOURCE),
    ),
    field("fc", "FC", GoForm::Pointer(FCVOLUME_SOURCE)),
    field("flocker", "Flocker", GoForm::Pointer(FLOCKER_VOLUME_SOURCE)),
    field(
        "flexVolume",
        "FlexVolume",
        GoForm::Pointer(FLEX_PERSISTENT_VOLUME_SOURCE),
    ),
    field(
        "azureFile",
        "AzureFile",
        GoForm::Pointer(AZURE_FILE_PERSISTENT_VOLUME_SOURCE),
    ),
    field(
        "vsphereVolume",
        "VsphereVolume",
        GoForm::Pointer(VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE),
    ),
    field("quobyte", "Quobyte", GoForm::Pointer(QUOBYTE_VOLUME_SOURCE)),
    field(
        "azureDisk",
        "AzureDisk",
        GoForm::Pointer(AZURE_DISK_VOLUME_SOURCE),
    ),
    field(
        "photonPersistentDisk",
        "PhotonPersistentDisk",
        GoForm::Pointer(PHOTON_PERSISTENT_DISK_VOLUME_SOURCE),
    ),
    field(
        "portworxVolume",
        "PortworxVolume",
        GoForm::Pointer(PORTWORX_VOLUME_SOURCE),
    ),
    field(
        "scaleIO",
        "ScaleIO",
        GoForm::Pointer(SCALE_IOPERSISTENT_VOLUME_SOURCE),
    ),
    field("local", "Local", GoForm::Pointer(LOCAL_VOLUME_SOURCE)),
    field(
        "storageos",
        "StorageOS",
        GoForm::Pointer(STORAGE_OSPERSISTENT_VOLUME_SOURCE),
    ),
    field("csi", "CSI", GoForm::Pointer(CSIPERSISTENT_VOLUME_SOURCE)),
];

const CSIPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("driver", "Driver", "\"\""),
    plain("volumeHandle", "VolumeHandle", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("fsType", "FSType", "\"\""),
    plain("volumeAttributes", "VolumeAttributes", "null"),
    field(
        "controllerPublishSecretRef",
        "ControllerPublishSecretRef",
        GoForm::Pointer(SECRET_REFERENCE),
    ),
    field(
        "nodeStageSecretRef",
        "NodeStageSecretRef",
        GoForm::Pointer(SECRET_REFERENCE),
    ),
    field(
        "nodePublishSecretRef",
        "NodePublishSecretRef",
        GoForm::Pointer(SECRET_REFERENCE),
    ),
    field(
        "controllerExpandSecretRef",
        "ControllerExpandSecretRef",
        GoForm::Pointer(SECRET_REFERENCE),
    ),
    field(
        "nodeExpandSecretRef",
        "NodeExpandSecretRef",
        GoForm::Pointer(SECRET_REFERENCE),
    ),
];

const STORAGE_OSPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("volumeName", "VolumeName", "\"\""),
    plain("volumeNamespace", "VolumeNamespace", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    field("secretRef", "SecretRef", GoForm::Pointer(OBJECT_REFERENCE)),
];

const OBJECT_REFERENCE: GoStruct = &[
    plain("kind", "Kind", "\"\""),
    plain("namespace", "Namespace", "\"\""),
    plain("name", "Name", "\"\""),
    plain("uid", "UID", "\"\""),
    plain("apiVersion", "APIVersion", "\"\""),
    plain("resourceVersion", "ResourceVersion", "\"\""),
    plain("fieldPath", "FieldPath", "\"\""),
];

const LOCAL_VOLUME_SOURCE: GoStruct = &[
    plain("path", "Path", "\"\""),
    plain("fsType", "FSType", "null"),
];

const SCALE_IOPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("gateway", "Gateway", "\"\""),
    plain("system", "System", "\"\""),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
    plain("sslEnabled", "SSLEnabled", "false"),
    plain("protectionDomain", "ProtectionDomain", "\"\""),
    plain("storagePool", "StoragePool", "\"\""),
    plain("storageMode", "StorageMode", "\"\""),
    plain("volumeName", "VolumeName", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
];

const PORTWORX_VOLUME_SOURCE: GoStruct = &[
    plain("volumeID", "VolumeID", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
];

const PHOTON_PERSISTENT_DISK_VOLUME_SOURCE: GoStruct = &[
    plain("pdID", "PdID", "\"\""),
    plain("fsType", "FSType", "\"\""),
];

const AZURE_DISK_VOLUME_SOURCE: GoStruct = &[
    plain("diskName", "DiskName", "\"\""),
    plain("diskURI", "DataDiskURI", "\"\""),
    plain("cachingMode", "CachingMode", "null"),
    plain("fsType", "FSType", "null"),
    plain("readOnly", "ReadOnly", "null"),
    plain("kind", "Kind", "null"),
];

const QUOBYTE_VOLUME_SOURCE: GoStruct = &[
    plain("registry", "Registry", "\"\""),
    plain("volume", "Volume", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("user", "User", "\"\""),
    plain("group", "Group", "\"\""),
    plain("tenant", "Tenant", "\"\""),
];

const VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE: GoStruct = &[
    plain("volumePath", "VolumePath", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("storagePolicyName", "StoragePolicyName", "\"\""),
    plain("storagePolicyID", "StoragePolicyID", "\"\""),
];

const AZURE_FILE_PERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("secretName", "SecretName", "\"\""),
    plain("shareName", "ShareName", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("secretNamespace", "SecretNamespace", "null"),
];

const FLEX_PERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("driver", "Driver", "\"\""),
    plain("fsType", "FSType", "\"\""),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
    plain("readOnly", "ReadOnly", "false"),
    plain("options", "Options", "null"),
];

const FLOCKER_VOLUME_SOURCE: GoStruct = &[
    plain("datasetName", "DatasetName", "\"\""),
    plain("datasetUUID", "DatasetUUID", "\"\""),
];

const FCVOLUME_SOURCE: GoStruct = &[
    plain("targetWWNs", "TargetWWNs", "null"),
    plain("lun", "Lun", "null"),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("wwids", "WWIDs", "null"),
];

const CEPH_FSPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("monitors", "Monitors", "null"),
    plain("path", "Path", "\"\""),
    plain("user", "User", "\"\""),
    plain("secretFile", "SecretFile", "\"\""),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
    plain("readOnly", "ReadOnly", "false"),
];

const CINDER_PERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("volumeID", "VolumeID", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
];

const ISCSIPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("targetPortal", "TargetPortal", "\"\""),
    plain("iqn", "IQN", "\"\""),
    plain("lun", "Lun", "0"),
    plain("iscsiInterface", "ISCSIInterface", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("portals", "Portals", "null"),
    plain("chapAuthDiscovery", "DiscoveryCHAPAuth", "false"),
    plain("chapAuthSession", "SessionCHAPAuth", "false"),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
    plain("initiatorName", "InitiatorName", "null"),
];

const RBDPERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("monitors", "CephMonitors", "null"),
    plain("image", "RBDImage", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("pool", "RBDPool", "\"\""),
    plain("user", "RadosUser", "\"\""),
    plain("keyring", "Keyring", "\"\""),
    field("secretRef", "SecretRef", GoForm::Pointer(SECRET_REFERENCE)),
    plain("readOnly", "ReadOnly", "false"),
];

const SECRET_REFERENCE: GoStruct = &[
    plain("name", "Name", "\"\""),
    plain("namespace", "Namespace", "\"\""),
];

const NFSVOLUME_SOURCE: GoStruct = &[
    plain("server", "Server", "\"\""),
    plain("path", "Path", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
];

const GLUSTERFS_PERSISTENT_VOLUME_SOURCE: GoStruct = &[
    plain("endpoints", "EndpointsName", "\"\""),
    plain("path", "Path", "\"\""),
    plain("readOnly", "ReadOnly", "false"),
    plain("endpointsNamespace", "EndpointsNamespace", "null"),
];

const HOST_PATH_VOLUME_SOURCE: GoStruct =
    &[plain("path", "Path", "\"\""), plain("type", "Type", "null")];

const AWSELASTIC_BLOCK_STORE_VOLUME_SOURCE: GoStruct = &[
    plain("volumeID", "VolumeID", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("partition", "Partition", "0"),
    plain("readOnly", "ReadOnly", "false"),
];

const GCEPERSISTENT_DISK_VOLUME_SOURCE: GoStruct = &[
    plain("pdName", "PDName", "\"\""),
    plain("fsType", "FSType", "\"\""),
    plain("partition", "Partition", "0"),
    plain("readOnly", "ReadOnly", "false"),
];
