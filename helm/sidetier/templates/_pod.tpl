{{/* Parts of pods. */}}

{{/* Fields of every container of this chart: (dict "root" $ "sidecar" bool). Optional: "image" overrides
fields of the sidecar's image, and "env" adds variables. */}}
{{- define "sidetier.container.common" -}}
{{- $image := merge (dict) (default dict .image) .root.Values.image -}}
{{- if and .image (not .image.digest) (or .image.repository .image.tag) }}{{ $image = omit $image "digest" }}{{ end -}}
image: {{ include "sidetier.imageOf" (list $image .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext:
  {{- $context := .root.Values.securityContext }}
  {{- if .sidecar }}
  {{- $context = merge (dict) (pick .root.Values.podSecurityContext "runAsUser" "runAsGroup") $context }}
  {{- end }}
  {{- toYaml $context | nindent 2 }}
{{- with concat (default list .root.Values.extraEnv) (default list .env) }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "sidetier.container.run" -}}
args: [run, --wait, --config, /etc/sidetier/sidetier.yaml]
ports:
  - name: sidetier-http
    containerPort: {{ include "sidetier.port" . }}
    protocol: TCP
{{- end -}}

{{/* (dict "root" $ "probe" values "path" "/healthz") */}}
{{- define "sidetier.probe" -}}
{{- $own := dict "httpGet" (dict "path" .path "port" "sidetier-http") -}}
{{- $acts := or (hasKey .probe "httpGet") (hasKey .probe "exec") (hasKey .probe "tcpSocket") -}}
{{- toYaml (ternary .probe (merge (dict) .probe $own) $acts) -}}
{{- end -}}

{{/* The log dirs are mounted read-only, unless a spool of hard links is on the same mount. */}}
{{- define "sidetier.logDirMounts" -}}
{{- include "sidetier.logDirMountsWith" (dict "root" .) -}}
{{- end -}}

{{/* (dict "root" $ "writable" bool) */}}
{{- define "sidetier.logDirMountsWith" -}}
{{- $root := .root -}}
{{- $writable := .writable -}}
{{- range $root.Values.logDirVolumes }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  {{- with .subPath }}
  subPath: {{ . }}
  {{- end }}
  readOnly: {{ not (or $writable (include "sidetier.holdsSpool" (list $root .mountPath))) }}
  {{- if .hostPath }}
  mountPropagation: HostToContainer
  {{- end }}
{{- end }}
{{- end -}}

{{/* The volumes of the log dirs on a node. */}}
{{- define "sidetier.logDirHostPaths" -}}
{{- $volumes := list -}}
{{- range .Values.logDirVolumes }}
{{- $volumes = append $volumes (dict "name" .name "hostPath" (dict "path" .hostPath "type" "Directory")) -}}
{{- end -}}
{{- with $volumes -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.otherMounts" -}}
- name: sidetier-config
  mountPath: /etc/sidetier
  readOnly: true
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sidetier.volumes" -}}
{{- include "sidetier.volumesWith" (dict "root" .) -}}
{{- end -}}

{{/* (dict "root" $ "optional" bool). The ConfigMap is optional in a broker's pod: a missing one must not
prevent the broker from starting. */}}
{{- define "sidetier.volumesWith" -}}
- name: sidetier-config
  configMap:
    name: {{ include "sidetier.fullname" .root }}
    {{- if .optional }}
    optional: true
    {{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Fields of the pods of this chart other than their containers and volumes. */}}
{{- define "sidetier.podSpec" -}}
serviceAccountName: {{ include "sidetier.serviceAccountName" . }}
automountServiceAccountToken: false
# The variables of a Service named sidetier would be taken for settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "sidetier.podMetadata" -}}
annotations:
  {{- include "sidetier.sidecar.podAnnotations" .root | nindent 2 }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
labels:
  {{- include "sidetier.selectorLabels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with merge (dict) .root.Values.podLabels .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
