{{/* Names, labels and addresses that several objects share. */}}

{{- define "polyplane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* 52 letters leave room for the longest ending, "-selfsigned". */}}
{{- define "polyplane.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* What selects the pods; never changes during the life of a release. */}}
{{- define "polyplane.selectorLabels" -}}
app.kubernetes.io/name: {{ include "polyplane.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: replica
{{- end }}

{{- define "polyplane.labels" -}}
{{- $own := merge (include "polyplane.selectorLabels" . | fromYaml) (dict
  "app.kubernetes.io/version" (.Chart.AppVersion | toString)
  "app.kubernetes.io/part-of" "polyplane"
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")) }}
{{- toYaml (merge $own .Values.labels) }}
{{- end }}

{{/* Labels of the pods: nothing that changes without a reason to replace them. */}}
{{- define "polyplane.podLabels" -}}
{{- $own := merge (include "polyplane.selectorLabels" . | fromYaml) (dict "app.kubernetes.io/part-of" "polyplane") }}
{{- toYaml (merge $own .Values.podLabels .Values.labels) }}
{{- end }}

{{/* The head of an object: include "polyplane.metadata" (list . NAME LABELS ANNOTATIONS). */}}
{{- define "polyplane.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- toYaml (merge (deepCopy (index . 2)) (include "polyplane.labels" $root | fromYaml)) | nindent 2 }}
{{- with merge (deepCopy (index . 3)) $root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "polyplane.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "polyplane.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "polyplane.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The Service's DNS name. */}}
{{- define "polyplane.host" -}}
{{- printf "%s.%s.svc" (include "polyplane.fullname" .) .Release.Namespace }}
{{- end }}

{{/* HOST:PORT that kubeconfigs name. */}}
{{- define "polyplane.endpoint" -}}
{{- $endpoint := default (printf "%s.%s" (include "polyplane.host" .) .Values.clusterDomain) .Values.server.endpoint }}
{{- if regexMatch ":[0-9]+$" $endpoint }}
{{- $endpoint }}
{{- else }}
{{- printf "%s:%d" $endpoint (int .Values.service.port) }}
{{- end }}
{{- end }}

{{/* Host names and addresses of the serving certificate, as a JSON list. */}}
{{- define "polyplane.hostNames" -}}
{{- $host := include "polyplane.host" . }}
{{- $outside := regexReplaceAll ":[0-9]+$" (include "polyplane.endpoint" .) "" | trimPrefix "[" | trimSuffix "]" }}
{{- $names := list
  (include "polyplane.fullname" .)
  (printf "%s.%s" (include "polyplane.fullname" .) .Release.Namespace)
  $host
  (printf "%s.%s" $host .Values.clusterDomain)
  "localhost" "127.0.0.1" "::1"
  $outside }}
{{- concat $names .Values.server.hostNames | uniq | toJson }}
{{- end }}

{{/* Those of them that are addresses, or are not: include "polyplane.hosts" (list . true|false). */}}
{{- define "polyplane.hosts" -}}
{{- $found := list }}
{{- range include "polyplane.hostNames" (index . 0) | fromJsonArray }}
{{- $address := or (contains ":" .) (regexMatch "^[0-9]+([.][0-9]+){3}$" .) }}
{{- if eq $address (index $ 1) }}
{{- $found = append $found . }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* How many replicas the Deployment names; nothing when the autoscaler chooses. An upgrade that leaves
the number out after it was there resets it to 1, which would end all replicas but one until the
autoscaler looks again; so a Deployment that runs keeps the number it has. */}}
{{- define "polyplane.replicas" -}}
{{- if .Values.autoscaling.enabled }}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "polyplane.fullname" .) | default dict }}
{{- $count := dig "spec" "replicas" "" $running }}
{{- if not (kindIs "string" $count) }}
{{- int $count }}
{{- end }}
{{- else }}
{{- .Values.replicas }}
{{- end }}
{{- end }}

{{/* An address and a port as the pods' address family writes them. */}}
{{- define "polyplane.everywhere" -}}
{{- if eq .Values.server.ipFamily "IPv6" }}[::]{{ else }}0.0.0.0{{ end }}
{{- end }}

{{- define "polyplane.loopback" -}}
{{- if eq .Values.server.ipFamily "IPv6" }}[::1]{{ else }}127.0.0.1{{ end }}
{{- end }}

{{- define "polyplane.podAddress" -}}
{{- if eq .Values.server.ipFamily "IPv6" }}[$(POD_IP)]{{ else }}$(POD_IP){{ end }}
{{- end }}

{{/* Seconds from the deletion of a pod to SIGKILL: the pre-stop hook may use the grace up, and the
end of the process once more. */}}
{{- define "polyplane.terminationGrace" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds }}
{{- add (mul 2 (int .Values.server.graceSeconds)) 10 }}
{{- else }}
{{- int .Values.terminationGracePeriodSeconds }}
{{- end }}
{{- end }}
