{{/* The parts of the pod that depend on values. */}}

{{/* What `polyplane serve` is called with. */}}
{{- define "polyplane.arguments" -}}
{{- $values := .Values }}
{{- $etcd := $values.etcd -}}
- serve
- --store={{ ternary "etcds" "etcd" $etcd.tls.enabled }}://{{ join "," $etcd.endpoints }}
- --store-prefix={{ $etcd.prefix }}
{{- if $etcd.tls.enabled }}
- --store-ca=/store/ca.crt
{{- if $etcd.tls.clientSecret }}
- --store-cert=/store/client.crt
- --store-key=/store/client.key
{{- end }}
{{- end }}
{{- if $etcd.auth.existingSecret }}
- --store-password-file=/store/password
{{- end }}
- --listen={{ include "polyplane.everywhere" . }}:{{ $values.server.clientPort }}
- --peer-listen={{ include "polyplane.everywhere" . }}:{{ $values.server.peerPort }}
- --endpoint={{ include "polyplane.endpoint" . }}
{{- range include "polyplane.hostNames" . | fromJsonArray }}
- --host-name={{ . }}
{{- end }}
- --certs={{ $values.certificates.mountPath }}
- --metrics-token-file=/metrics-token/token
- --weight={{ int64 $values.server.weight }}
- --member-ttl={{ int64 $values.server.memberTtlSeconds }}
- --grace={{ int64 $values.server.graceSeconds }}
- --drain-notice={{ int64 $values.server.drainNoticeSeconds }}
- --sleep-after={{ int64 $values.server.sleepAfterSeconds }}
- --raise-floor-after={{ int64 $values.server.raiseFloorAfterSeconds }}
- --log={{ $values.server.log }}
{{- $limits := $values.server.planeLimits | default dict }}
{{- range $field, $flag := dict "requestsPerSecond" "requests-per-second" "writesPerSecond" "writes-per-second" "watches" "watches-max" "objects" "objects-max" "bytes" "bytes-max" }}
{{- $limit := get $limits $field }}
{{- if not (kindIs "invalid" $limit) }}
{{- if not (kindIs "string" $limit) }}{{ $limit = int64 $limit }}{{ end }}
{{- if ne (toString $limit) "" }}
- --plane-{{ $flag }}={{ $limit }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.server.hstsDirectives }}
- --strict-transport-security-directives={{ join "," . }}
{{- end }}
{{- with $values.server.corsAllowedOrigins }}
- {{ printf "--cors-allowed-origins=%s" (join "," .) | quote }}
{{- end }}
{{- if $values.encryption.existingSecret }}
- --encryption-provider-config=/encryption/config.yaml
{{- end }}
{{- if $values.authentication.config }}
- --authentication-config=/authentication/config.yaml
{{- end }}
{{- with $values.authentication.outboundAllow }}
- --outbound-allow={{ join "," . }}
{{- end }}
{{- if $values.admission.config }}
- --admission-control-config-file=/admission/config.yaml
{{- end }}
{{- if $values.audit.policy }}
- --audit-policy-file=/audit/policy.yaml
{{- if $values.audit.log.enabled }}
- --audit-log-path=-
- --audit-log-mode={{ $values.audit.log.mode }}
{{- end }}
{{- with $values.audit.webhook }}
{{- if .existingSecret }}
- --audit-webhook-config-file=/audit-webhook/{{ .key }}
- --audit-webhook-mode={{ .mode }}
- --audit-webhook-initial-backoff={{ .initialBackoff }}
- --audit-webhook-batch-buffer-size={{ int64 .bufferSize }}
- --audit-webhook-batch-max-size={{ int64 .maxSize }}
- --audit-webhook-batch-max-wait={{ .maxWait }}
- --audit-webhook-truncate-enabled={{ .truncate }}
{{- end }}
{{- end }}
{{- end }}
{{- range $values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* What differs from pod to pod, and what stands in Secrets. */}}
{{- define "polyplane.environment" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: POLYPLANE_REPLICA_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POLYPLANE_ADVERTISE
  value: {{ printf "%s:%d" (include "polyplane.podAddress" .) (int .Values.server.peerPort) | quote }}
{{- if eq .Values.zone.source "label" }}
# Kubernetes copies the node's label to the pod from 1.35 on; the variable is empty before.
- name: POLYPLANE_ZONE
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
{{- else if eq .Values.zone.source "fixed" }}
- name: POLYPLANE_ZONE
  value: {{ .Values.zone.name | quote }}
{{- end }}
{{- with .Values.etcd.auth }}
{{- if .existingSecret }}
- name: POLYPLANE_STORE_USER
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .userKey | quote }}
{{- end }}
{{- end }}
{{- with .Values.server.extraEnv }}
{{ toYaml . }}
{{- end }}
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
  "matchLabelKeys" (list "pod-template-hash")) }}
{{- end }}
{{- end }}
{{- end }}
{{- with concat $constraints .Values.extraTopologySpreadConstraints }}
{{- toYaml . }}
{{- end }}
{{- end }}
