{{/* What a schema cannot say: values that contradict each other. Each text says what to do. */}}
{{- define "polyplane.checks" -}}
{{- $values := .Values }}
{{- if not $values.etcd.endpoints }}
{{- fail "\n\netcd.endpoints is empty. Name the etcd members that keep the planes, for example\n  --set 'etcd.endpoints={etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379}'\n" }}
{{- end }}
{{- if eq (int $values.server.clientPort) (int $values.server.peerPort) }}
{{- fail "\n\nserver.clientPort and server.peerPort are the same; clients and peers need a port each\n" }}
{{- end }}
{{- if $values.autoscaling.enabled }}
{{- if lt (int $values.autoscaling.maxReplicas) (int $values.autoscaling.minReplicas) }}
{{- fail "\n\nautoscaling.maxReplicas is below autoscaling.minReplicas\n" }}
{{- end }}
{{- if not (or $values.autoscaling.cpuPercent $values.autoscaling.memoryPercent) }}
{{- fail "\n\nautoscaling has no target; give autoscaling.cpuPercent or autoscaling.memoryPercent\n" }}
{{- end }}
{{- range $resource, $percent := dict "cpu" $values.autoscaling.cpuPercent "memory" $values.autoscaling.memoryPercent }}
{{- if and $percent (not (dig "requests" $resource "" $values.resources)) }}
{{- fail (printf "\n\nautoscaling.%sPercent is a share of resources.requests.%s, which is not given\n" $resource $resource) }}
{{- end }}
{{- end }}
{{- end }}
{{- if le (int (include "polyplane.terminationGrace" .)) (int $values.server.graceSeconds) }}
{{- fail (printf "\n\nterminationGracePeriodSeconds (%s) must be above server.graceSeconds (%d), or replicas are killed while they hand planes over; null fits it to the grace\n" (include "polyplane.terminationGrace" .) (int $values.server.graceSeconds)) }}
{{- end }}
{{- if ge (int $values.server.drainNoticeSeconds) (int $values.server.graceSeconds) }}
{{- fail (printf "\n\nserver.drainNoticeSeconds (%d) must be below server.graceSeconds (%d): it is part of it\n" (int $values.server.drainNoticeSeconds) (int $values.server.graceSeconds)) }}
{{- end }}
{{- if and (has (toString $values.rollingUpdate.maxUnavailable) (list "0" "0%")) (has (toString $values.rollingUpdate.maxSurge) (list "0" "0%")) }}
{{- fail "\n\nrollingUpdate.maxUnavailable and rollingUpdate.maxSurge are both 0; no update could ever go on\n" }}
{{- end }}
{{- if lt (int $values.progressDeadlineSeconds) (add (int $values.minReadySeconds) 1) }}
{{- fail "\n\nprogressDeadlineSeconds must be above minReadySeconds\n" }}
{{- end }}
{{- if and $values.audit.webhook.existingSecret (not $values.audit.policy) }}
{{- fail "\n\naudit.webhook.existingSecret is given without audit.policy, so the webhook would get nothing\n" }}
{{- end }}
{{- if and $values.audit.policy (not $values.audit.log.enabled) (not $values.audit.webhook.existingSecret) }}
{{- fail "\n\naudit.policy is given, but neither audit.log.enabled nor audit.webhook.existingSecret says where events go\n" }}
{{- end }}
{{- $chosen := include "polyplane.chosenFlags" . | fromJsonArray }}
{{- range $values.server.extraArgs }}
{{- $flag := first (splitList "=" .) }}
{{- if has $flag $chosen }}
{{- fail (printf "\n\nserver.extraArgs has %s, which the chart sets itself; use the value for it\n" $flag) }}
{{- end }}
{{- end }}
{{- range $values.server.extraEnv }}
{{- if has .name (list "POD_IP" "POLYPLANE_REPLICA_ID" "POLYPLANE_ADVERTISE" "POLYPLANE_ZONE" "POLYPLANE_STORE_USER" "POLYPLANE_METRICS_TOKEN_FILE") }}
{{- fail (printf "\n\nserver.extraEnv has %s, which the chart sets itself\n" .name) }}
{{- end }}
{{- end }}
{{- include "polyplane.checkGivenSecret" . }}
{{- end }}

{{- define "polyplane.chosenFlags" -}}
{{- list "--store" "--store-prefix" "--store-ca" "--store-cert" "--store-key" "--store-user" "--store-password-file"
  "--listen" "--peer-listen" "--advertise" "--endpoint" "--replica-id" "--zone" "--weight" "--certs" "--member-ttl"
  "--metrics-token-file" "--grace" "--drain-notice" "--sleep-after" "--raise-floor-after" "--log"
  "--plane-requests-per-second" "--plane-writes-per-second" "--plane-watches-max" "--plane-objects-max" "--plane-bytes-max"
  "--strict-transport-security-directives" "--cors-allowed-origins" | toJson }}
{{- end }}

{{/* A given Secret that can be seen is looked through; `helm template` sees none. */}}
{{- define "polyplane.checkGivenSecret" -}}
{{- if eq .Values.certificates.mode "secret" }}
{{- $name := .Values.certificates.existingSecret }}
{{- $given := lookup "v1" "Secret" .Release.Namespace $name }}
{{- if $given }}
{{- $keys := $given.data | default dict }}
{{- $needed := list "ca.crt" "ca.key" "admin.token" "peer-ca.crt" }}
{{- with .Values.certificates.servingCaKey }}
{{- $needed = append $needed . }}
{{- end }}
{{- range $one, $other := dict "serving.crt" "serving.key" "serving.key" "serving.crt" }}
{{- if hasKey $keys $one }}
{{- $needed = append $needed $other }}
{{- end }}
{{- end }}
{{- if not (and (hasKey $keys "peer.crt") (hasKey $keys "peer.key")) }}
{{- $needed = append $needed "peer-ca.key" }}
{{- end }}
{{- range $needed }}
{{- if not (hasKey $keys .) }}
{{- fail (printf "\n\nthe Secret %s has no %s; `polyplane certs --certs DIR` makes a complete folder for it\n" $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
