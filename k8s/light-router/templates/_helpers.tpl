{{- define "lr.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels that select a component's pods: (list $ "api"). */}}
{{- define "lr.selector" -}}
app.kubernetes.io/name: light-router
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "lr.labels" -}}
{{ include "lr.selector" . }}
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ (first .).Chart.Name }}-{{ (first .).Chart.Version }}
{{- end }}

{{/* An image's reference: (list $ .Values.image "-cpu"). */}}
{{- define "lr.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (printf "%s%s" (first .).Chart.AppVersion (last .)) }}
{{- end }}
{{- end }}

{{- define "lr.ownImage" -}}
{{ include "lr.image" (list . .Values.image (printf "-%s" .Values.image.flavour)) }}
{{- end }}

{{- define "lr.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lr.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Seconds that one decision may wait for the engine. */}}
{{- define "lr.timeout" -}}
{{ ceil (dig "engine" "timeout_s" 30 .Values.config) }}
{{- end }}

{{- define "lr.engineKind" -}}
{{ dig "engine" "kind" "local" .Values.config }}
{{- end }}

{{- define "lr.engineUrl" -}}
{{- if .Values.inferencePool.enabled -}}
{{ .Values.inferencePool.url }}
{{- else -}}
http://{{ include "lr.name" . }}-{{ ternary "balancer" "vllm" .Values.balancer.enabled }}:8001
{{- end }}
{{- end }}

{{- define "lr.deliversAdapter" -}}
{{ if or .Values.adapter.url .Values.adapter.existingClaim }}true{{ end }}
{{- end }}

{{/* "true" where the catalogue is a file in the API's volume. */}}
{{- define "lr.sqlite" -}}
{{- $database := dig "catalog" "database" "" .Values.config | default "" -}}
{{ if and (hasPrefix "sqlite:" $database) (not .Values.secrets.keys.databaseUrl) }}true{{ end }}
{{- end }}

{{/* The profile: the values' config, and what only the chart knows. */}}
{{- define "lr.profile" -}}
{{- $set := dict "server" (dict "host" "0.0.0.0" "port" 8000) -}}
{{- if eq (include "lr.engineKind" .) "vllm" -}}
{{- $_ := set $set "engine" (dict "url" (include "lr.engineUrl" .) "vllm" (dict "host" "0.0.0.0" "port" 8001)) -}}
{{- end -}}
{{- if include "lr.deliversAdapter" . -}}
{{- $_ := set $set "model" (dict "adapter" (printf "/adapter/%s" .Values.adapter.name)) -}}
{{- end -}}
{{ mergeOverwrite (deepCopy .Values.config) $set | toYaml }}
{{- end }}

{{/* A variable from a key of the secret: (list $ "NAME" "key"). */}}
{{- define "lr.secretVariable" -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ (first .).Values.secrets.existingSecret | quote }}
      key: {{ last . | quote }}
{{- end }}

{{/* The init container that delivers the adapter, where there is one to deliver. */}}
{{- define "lr.adapterContainer" -}}
{{- if include "lr.deliversAdapter" . }}
{{- with .Values.adapter }}
- name: adapter
  image: {{ include "lr.ownImage" $ }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command: [python, -c]
  args:
    - |
      {{- $.Files.Get "files/deliver_adapter.py" | nindent 6 }}
    - {{ .url | default (printf "/archive/%s" .file) | quote }}
    - {{ .sha256 | quote }}
    - /adapter
    - {{ .name | quote }}
  securityContext: {{- include "lr.containerSecurity" $ | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 128Mi}
    limits: {memory: 512Mi}
  volumeMounts:
    - {name: adapter, mountPath: /adapter}
    {{- if .existingClaim }}
    - {name: archive, mountPath: /archive, readOnly: true}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lr.adapterVolumes" -}}
{{- if include "lr.deliversAdapter" . }}
- name: adapter
  emptyDir: {sizeLimit: 4Gi}
{{- with .Values.adapter.existingClaim }}
- name: archive
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* Replicas apart from each other, where there is room: (list $ "api"). */}}
{{- define "lr.spread" -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "lr.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- define "lr.egressDns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{/* Anything on the internet and in the cluster by HTTPS, but for the cloud's own metadata. */}}
{{- define "lr.egressHttps" -}}
- to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
  ports:
    - {protocol: TCP, port: 443}
{{- end }}

{{- define "lr.egressTo" -}}
- to:
    - podSelector:
        matchLabels: {{- include "lr.selector" . | nindent 10 }}
  ports:
    - {protocol: TCP, port: http}
{{- end }}
