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
{{- $longestNotice := sub (int $values.server.graceSeconds) 6 | int }}
{{- if gt (int $values.server.drainNoticeSeconds) $longestNotice }}
{{- fail (printf "\n\nserver.drainNoticeSeconds (%d) does not fit into server.graceSeconds (%d), of which the last six are for requests in flight; give at most %d, or a longer grace\n" (int $values.server.drainNoticeSeconds) (int $values.server.graceSeconds) $longestNotice) }}
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
{{- include "polyplane.checkBudget" . }}
{{- include "polyplane.checkExtras" . }}
{{- include "polyplane.checkFolders" . }}
{{- include "polyplane.checkGivenSecret" . }}
{{- end }}

{{/* Kubernetes rounds shares of a budget up: 75% of three replicas are all three. */}}
{{- define "polyplane.checkBudget" -}}
{{- $budget := .Values.podDisruptionBudget }}
{{- $replicas := .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas | int }}
{{- $bound := kindIs "invalid" $budget.minAvailable | ternary "maxUnavailable" "minAvailable" }}
{{- $given := get $budget $bound | default 0 | toString }}
{{- $amount := trimSuffix "%" $given | int }}
{{- if hasSuffix "%" $given }}
{{- $amount = div (add (mul $replicas $amount) 99) 100 | int }}
{{- end }}
{{- $none := eq $bound "minAvailable" | ternary (ge $amount $replicas) (and (eq $amount 0) (not (kindIs "invalid" $budget.maxUnavailable))) }}
{{- if and $budget.enabled $none }}
{{- fail (printf "\n\npodDisruptionBudget.%s %s lets none of %d replicas go, so that no node could be drained; leave it out to let one go at a time\n" $bound $given $replicas) }}
{{- end }}
{{- end }}

{{/* A flag that is given twice ends each replica at its start. */}}
{{- define "polyplane.checkExtras" -}}
{{- $own := include "polyplane.ownVariables" . | fromJsonArray }}
{{- range .Values.server.extraArgs }}
{{- $flag := regexFind "^--[-a-z0-9]+" . }}
{{- if has (include "polyplane.variable" $flag) $own }}
{{- fail (printf "\n\nserver.extraArgs has %s, which the chart sets itself; use the value for it (README.md, \"Values\")\n" $flag) }}
{{- end }}
{{- end }}
{{- range .Values.server.extraEnv }}
{{- if has .name $own }}
{{- fail (printf "\n\nserver.extraEnv has %s, which the chart sets itself; use the value for it (README.md, \"Values\")\n" .name) }}
{{- end }}
{{- end }}
{{- $volumes := include "polyplane.volumes" . | fromYaml }}
{{- range .Values.extraVolumes }}
{{- if hasKey $volumes .name }}
{{- fail (printf "\n\nextraVolumes has %s, which is the name of a volume of the chart; choose another one\n" .name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A volume cannot be mounted where another one is, and hides what lies below it. The folders of switches that are off
count, so that nothing must move when one is switched on. */}}
{{- define "polyplane.checkFolders" -}}
{{- $certificates := .Values.certificates.mountPath }}
{{- if ne $certificates (clean $certificates) }}
{{- fail (printf "\n\ncertificates.mountPath %s must be a plain path such as %s\n" $certificates (clean $certificates)) }}
{{- end }}
{{- range list "/dev" "/proc" "/sys" "/tmp" "/polyplane" "/etc/hosts" "/etc/hostname" "/etc/resolv.conf" }}
{{- include "polyplane.apart" (list "certificates.mountPath" $certificates . "which is the system's or the program's") }}
{{- end }}
{{- $folders := include "polyplane.folders" . | fromJson }}
{{- range $name, $folder := omit $folders "certificates" }}
{{- include "polyplane.apart" (list "certificates.mountPath" $certificates $folder (printf "where the chart mounts its volume %s" $name)) }}
{{- end }}
{{- range $extra := .Values.extraVolumeMounts }}
{{- include "polyplane.apart" (list "extraVolumeMounts has" .mountPath "/polyplane" "which is the program") }}
{{- range $name, $folder := $folders }}
{{- include "polyplane.apart" (list "extraVolumeMounts has" $extra.mountPath $folder (printf "where the chart mounts its volume %s" $name)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuses a folder that is, holds or lies in another one: include "polyplane.apart" (list VALUE FOLDER OTHER WHY). */}}
{{- define "polyplane.apart" -}}
{{- $folder := index . 1 | clean | trimSuffix "/" | printf "%s/" }}
{{- $other := index . 2 | printf "%s/" }}
{{- if or (hasPrefix $folder $other) (hasPrefix $other $folder) }}
{{- fail (printf "\n\n%s %s, which overlaps %s, %s; choose another folder\n" (index . 0) (index . 1) (index . 2) (index . 3)) }}
{{- end }}
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
