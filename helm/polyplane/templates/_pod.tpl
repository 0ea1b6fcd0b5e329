{{/* The parts of the pod that depend on values. */}}

{{/* Every flag of `polyplane serve` that the chart has a value for, and what it is given; a flag without a text is
left out. A flag in this table is refused in server.extraArgs, and its variable in server.extraEnv. */}}
{{- define "polyplane.flags" -}}
{{- $etcd := .Values.etcd }}
{{- $server := .Values.server }}
{{- $limits := $server.planeLimits | default dict }}
{{- $audit := .Values.audit }}
{{- $logged := and (not (empty $audit.policy)) $audit.log.enabled }}
{{- $posted := not (or (empty $audit.policy) (empty $audit.webhook.existingSecret)) -}}
store: {{ printf "%s://%s" (ternary "etcds" "etcd" $etcd.tls.enabled) (join "," $etcd.endpoints) | quote }}
store-prefix: {{ $etcd.prefix | quote }}
store-ca: {{ $etcd.tls.enabled | ternary "/store/ca.crt" "" | quote }}
store-cert: {{ $etcd.tls.clientSecret | empty | ternary "" "/store/client.crt" | quote }}
store-key: {{ $etcd.tls.clientSecret | empty | ternary "" "/store/client.key" | quote }}
store-password-file: {{ $etcd.auth.existingSecret | empty | ternary "" "/store/password" | quote }}
listen: {{ printf "%s:%d" (include "polyplane.everywhere" .) (int $server.clientPort) | quote }}
peer-listen: {{ printf "%s:%d" (include "polyplane.everywhere" .) (int $server.peerPort) | quote }}
endpoint: {{ include "polyplane.endpoint" . | quote }}
host-name: {{ include "polyplane.hostNames" . | fromJsonArray | join "," | quote }}
certs: {{ .Values.certificates.mountPath | quote }}
metrics-token-file: /metrics-token/token
weight: {{ int64 $server.weight | quote }}
member-ttl: {{ int64 $server.memberTtlSeconds | quote }}
grace: {{ int64 $server.graceSeconds | quote }}
drain-notice: {{ int64 $server.drainNoticeSeconds | quote }}
sleep-after: {{ int64 $server.sleepAfterSeconds | quote }}
raise-floor-after: {{ int64 $server.raiseFloorAfterSeconds | quote }}
log: {{ $server.log | quote }}
plane-requests-per-second: {{ include "polyplane.limit" $limits.requestsPerSecond | quote }}
plane-writes-per-second: {{ include "polyplane.limit" $limits.writesPerSecond | quote }}
plane-watches-max: {{ include "polyplane.limit" $limits.watches | quote }}
plane-objects-max: {{ include "polyplane.limit" $limits.objects | quote }}
plane-bytes-max: {{ include "polyplane.limit" $limits.bytes | quote }}
strict-transport-security-directives: {{ join "," $server.hstsDirectives | quote }}
cors-allowed-origins: {{ join "," $server.corsAllowedOrigins | quote }}
encryption-provider-config: {{ .Values.encryption.existingSecret | empty | ternary "" "/encryption/config.yaml" | quote }}
authentication-config: {{ .Values.authentication.config | empty | ternary "" "/authentication/config.yaml" | quote }}
outbound-allow: {{ join "," .Values.authentication.outboundAllow | quote }}
admission-control-config-file: {{ .Values.admission.config | empty | ternary "" "/admission/config.yaml" | quote }}
audit-policy-file: {{ $audit.policy | empty | ternary "" "/audit/policy.yaml" | quote }}
audit-log-path: {{ $logged | ternary $audit.log.path "" | quote }}
audit-log-mode: {{ $logged | ternary $audit.log.mode "" | quote }}
audit-webhook-config-file: {{ $posted | ternary (printf "/audit-webhook/%s" $audit.webhook.key) "" | quote }}
audit-webhook-mode: {{ $posted | ternary $audit.webhook.mode "" | quote }}
audit-webhook-initial-backoff: {{ $posted | ternary $audit.webhook.initialBackoff "" | quote }}
audit-webhook-batch-buffer-size: {{ $posted | ternary (int64 $audit.webhook.bufferSize) "" | quote }}
audit-webhook-batch-max-size: {{ $posted | ternary (int64 $audit.webhook.maxSize) "" | quote }}
audit-webhook-batch-max-wait: {{ $posted | ternary $audit.webhook.maxWait "" | quote }}
audit-webhook-truncate-enabled: {{ $posted | ternary $audit.webhook.truncate "" | quote }}
{{- end }}

{{/* A limit as text: nothing for null. */}}
{{- define "polyplane.limit" -}}
{{- if kindIs "string" . }}
{{- . }}
{{- else if not (kindIs "invalid" .) }}
{{- int64 . }}
{{- end }}
{{- end }}

{{/* What `polyplane serve` is called with. */}}
{{- define "polyplane.arguments" -}}
- serve
{{- range $flag, $value := include "polyplane.flags" . | fromYaml }}
{{- if ne $value "" }}
- {{ printf "--%s=%s" $flag $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Every variable that the chart has a value for: what differs from pod to pod, and what stands in Secrets. One
without a source is left out. A variable in this table is refused in server.extraEnv, and its flag in server.extraArgs. */}}
{{- define "polyplane.variables" -}}
POD_IP:
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
POLYPLANE_REPLICA_ID:
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
POLYPLANE_ADVERTISE:
  # The kubelet replaces $(POD_IP), which must stand before: the names are sorted.
  value: {{ printf "%s:%d" (include "polyplane.podAddress" .) (int .Values.server.peerPort) | quote }}
POLYPLANE_ZONE:
  {{- if eq .Values.zone.source "label" }}
  # Kubernetes copies the node's label to the pod from 1.35 on; the variable is empty before.
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
  {{- else if eq .Values.zone.source "fixed" }}
  value: {{ .Values.zone.name | quote }}
  {{- end }}
POLYPLANE_STORE_USER:
  {{- with .Values.etcd.auth }}
  {{- if .existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .userKey | quote }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "polyplane.environment" -}}
{{- $variables := list }}
{{- range $name, $source := include "polyplane.variables" . | fromYaml }}
{{- with $source }}
{{- $variables = append $variables (merge (dict "name" $name) .) }}
{{- end }}
{{- end }}
{{- concat $variables .Values.server.extraEnv | toYaml }}
{{- end }}

{{/* The variable that `polyplane serve` reads if a flag is not given. */}}
{{- define "polyplane.variable" -}}
POLYPLANE_{{ . | trimPrefix "--" | upper | replace "-" "_" }}
{{- end }}

{{/* Names that server.extraEnv must not have, as a JSON list. */}}
{{- define "polyplane.ownVariables" -}}
{{- $own := include "polyplane.variables" . | fromYaml | keys }}
{{- range $flag, $_ := include "polyplane.flags" . | fromYaml }}
{{- $own = append $own (include "polyplane.variable" $flag) }}
{{- end }}
{{- toJson $own }}
{{- end }}

{{/* Every volume that the chart has a value for; one without a source is left out. Each is mounted at /NAME, but the
certificates at certificates.mountPath. A name in this table is refused in extraVolumes, and its folder in
extraVolumeMounts and certificates.mountPath. */}}
{{- define "polyplane.volumes" -}}
{{- $name := include "polyplane.fullname" . -}}
# 0440 (288): the process is not the files' owner, but in their group.
certificates:
  projected:
    defaultMode: 288
    sources:
      {{- include "polyplane.certificateSources" . | nindent 6 }}
metrics-token:
  projected:
    defaultMode: 288
    sources:
      {{- include "polyplane.metricsSources" . | nindent 6 }}
store:
  {{- with include "polyplane.storeSources" . }}
  projected:
    defaultMode: 288
    sources:
      {{- . | nindent 6 }}
  {{- end }}
authentication:
  {{- if .Values.authentication.config }}
  configMap:
    name: {{ printf "%s-authentication" $name | quote }}
  {{- end }}
admission:
  {{- if .Values.admission.config }}
  configMap:
    name: {{ printf "%s-admission" $name | quote }}
  {{- end }}
encryption:
  {{- with .Values.encryption }}
  {{- if .existingSecret }}
  projected:
    defaultMode: 288
    sources:
      {{- include "polyplane.secretFiles" (list .existingSecret .key "config.yaml") | nindent 6 }}
  {{- end }}
  {{- end }}
audit:
  {{- if .Values.audit.policy }}
  configMap:
    name: {{ printf "%s-audit" $name | quote }}
  {{- end }}
audit-webhook:
  {{- with .Values.audit.webhook.existingSecret }}
  secret:
    secretName: {{ . | quote }}
    defaultMode: 288
  {{- end }}
{{- end }}

{{/* The folders of these volumes by their names, as a JSON object. */}}
{{- define "polyplane.folders" -}}
{{- $folders := dict }}
{{- range $name, $_ := include "polyplane.volumes" . | fromYaml }}
{{- $_ := set $folders $name (printf "/%s" $name) }}
{{- end }}
{{- set $folders "certificates" .Values.certificates.mountPath | toJson }}
{{- end }}

{{/* The files of the certificate folder: include "polyplane.secretFiles" (list SECRET KEY FILE KEY FILE …). */}}
{{- define "polyplane.secretFiles" -}}
{{- $words := . -}}
- secret:
    name: {{ first $words | quote }}
    items:
      {{- range $at := untilStep 1 (len $words) 2 }}
      - key: {{ index $words $at | quote }}
        path: {{ index $words (add1 $at | int) | quote }}
      {{- end }}
{{- end }}

{{- define "polyplane.certificateSources" -}}
{{- $name := include "polyplane.fullname" . }}
{{- if eq .Values.certificates.mode "certManager" -}}
{{ include "polyplane.secretFiles" (list (printf "%s-ca" $name) "tls.crt" "ca.crt" "tls.key" "ca.key") }}
{{ include "polyplane.secretFiles" (list (printf "%s-serving" $name) "tls.crt" "serving.crt" "tls.key" "serving.key") }}
{{- /* tls.crt and not ca.crt, which is the CA above this one if there is an issuerRef: what that signs is no peer. Replicas take only the first of the chain in tls.crt. */}}
{{ include "polyplane.secretFiles" (list (printf "%s-peer-ca" $name) "tls.crt" "peer-ca.crt") }}
{{ include "polyplane.secretFiles" (list (printf "%s-peer" $name) "tls.crt" "peer.crt" "tls.key" "peer.key") }}
{{ include "polyplane.secretFiles" (list (include "polyplane.adminSecret" .) "admin.token" "admin.token") }}
{{ include "polyplane.rootSecret" . }}
{{- else if eq .Values.certificates.mode "secret" -}}
- secret:
    name: {{ .Values.certificates.existingSecret | quote }}
{{- else -}}
{{ include "polyplane.secretFiles" (concat (list (include "polyplane.adminSecret" .)) (list
  "ca.crt" "ca.crt" "ca.key" "ca.key" "peer-ca.crt" "peer-ca.crt" "peer-ca.key" "peer-ca.key" "admin.token" "admin.token")) }}
{{ include "polyplane.rootSecret" . }}
{{- end }}
{{- end }}

{{/* Optional, because a Secret of an earlier release, or of your own, may lack it. */}}
{{- define "polyplane.rootSecret" -}}
- secret:
    name: {{ include "polyplane.adminSecret" . | quote }}
    optional: true
    items:
      - key: "root.secret"
        path: "root.secret"
{{- end }}

{{/* The Secret that holds the administrator's token. */}}
{{- define "polyplane.adminSecret" -}}
{{- if eq .Values.certificates.mode "secret" }}
{{- .Values.certificates.existingSecret }}
{{- else if eq .Values.certificates.mode "certManager" }}
{{- default (printf "%s-admin" (include "polyplane.fullname" .)) .Values.certificates.certManager.adminSecret }}
{{- else }}
{{- printf "%s-certificates" (include "polyplane.fullname" .) }}
{{- end }}
{{- end }}

{{/* The Secret that holds the token for metrics, and its key, as a JSON list. */}}
{{- define "polyplane.metricsSecret" -}}
{{- if .Values.metrics.existingSecret }}
{{- list .Values.metrics.existingSecret .Values.metrics.tokenKey | toJson }}
{{- else }}
{{- list (printf "%s-metrics" (include "polyplane.fullname" .)) .Values.metrics.tokenKey | toJson }}
{{- end }}
{{- end }}

{{- define "polyplane.metricsSources" -}}
{{- $secret := include "polyplane.metricsSecret" . | fromJsonArray }}
{{- include "polyplane.secretFiles" (list (index $secret 0) (index $secret 1) "token") }}
{{- end }}

{{/* The Secret and the key under which clients find the CA of the serving certificate, as a JSON list. */}}
{{- define "polyplane.caSecret" -}}
{{- if eq .Values.certificates.mode "certManager" }}
{{- list (printf "%s-ca" (include "polyplane.fullname" .)) "tls.crt" | toJson }}
{{- else if .Values.certificates.servingCaKey }}
{{- list (include "polyplane.adminSecret" .) .Values.certificates.servingCaKey | toJson }}
{{- else }}
{{- list (include "polyplane.adminSecret" .) "ca.crt" | toJson }}
{{- end }}
{{- end }}

{{/* Files for the connection to etcd; empty when there are none. */}}
{{- define "polyplane.storeSources" -}}
{{- $tls := .Values.etcd.tls }}
{{- $sources := list }}
{{- if $tls.enabled }}
{{- $sources = append $sources (include "polyplane.secretFiles" (list $tls.caSecret $tls.caKey "ca.crt")) }}
{{- if $tls.clientSecret }}
{{- $sources = append $sources (include "polyplane.secretFiles" (list $tls.clientSecret $tls.certKey "client.crt" $tls.keyKey "client.key")) }}
{{- end }}
{{- end }}
{{- with .Values.etcd.auth }}
{{- if .existingSecret }}
{{- $sources = append $sources (include "polyplane.secretFiles" (list .existingSecret .passwordKey "password")) }}
{{- end }}
{{- end }}
{{- join "\n" $sources }}
{{- end }}

{{/* Nodes whose taints keep replicas away do not count, or DoNotSchedule would wait for them. */}}
{{- define "polyplane.spread" -}}
{{- $constraints := list }}
{{- with .Values.topologySpread }}
{{- if .enabled }}
{{- range $key, $else := dict "topology.kubernetes.io/zone" .zone "kubernetes.io/hostname" .node }}
{{- $constraints = append $constraints (dict
  "topologyKey" $key
  "maxSkew" $.Values.topologySpread.maxSkew
  "whenUnsatisfiable" $else
  "labelSelector" (dict "matchLabels" (include "polyplane.selectorLabels" $ | fromYaml))
  "nodeTaintsPolicy" "Honor"
  "matchLabelKeys" (list "pod-template-hash")) }}
{{- end }}
{{- end }}
{{- end }}
{{- with concat $constraints .Values.extraTopologySpreadConstraints }}
{{- toYaml . }}
{{- end }}
{{- end }}
