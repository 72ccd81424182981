{{/* One Job for the log dirs of each broker: (dict "root" $ "component" name "values" values of the component
"args" arguments of sidetier "writable" bool "mounts" and "volumes" additional ones). */}}
{{- define "sidetier.brokerJobs" -}}
{{- $given := . -}}
{{- range $broker := .values.brokers }}
{{- $spec := include "sidetier.brokerJob.spec" (merge (dict "broker" $broker) $given) }}
---
apiVersion: batch/v1
kind: Job
metadata:
  # A Job is immutable: the hash in the name creates another Job for any change.
  name: {{ printf "%s-%s-%s" (include "sidetier.fullname" $given.root) $given.component .name | trunc 56 | trimSuffix "-" }}-{{ list .name $spec | toJson | sha256sum | trunc 6 }}
  labels:
    {{- include "sidetier.labels" $given.root | nindent 4 }}
    app.kubernetes.io/component: {{ $given.component }}
spec:
  {{- $spec | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same arguments, and "broker", one of the brokers. */}}
{{- define "sidetier.brokerJob.spec" -}}
{{- $root := .root -}}
{{- $broker := .broker -}}
{{- $writable := .writable -}}
backoffLimit: {{ .values.backoffLimit }}
{{- if not (kindIs "invalid" .values.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ .values.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    {{- include "sidetier.podMetadata" (dict "root" $root "component" .component) | nindent 4 }}
  spec:
    {{- include "sidetier.podSpec" $root | nindent 4 }}
    {{- with merge (dict) (default dict $broker.nodeSelector) $root.Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    restartPolicy: Never
    terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
    containers:
      - name: {{ .component }}
        {{- include "sidetier.container.common" (dict "root" $root) | nindent 8 }}
        args:
          {{- toYaml .args | nindent 10 }}
        resources:
          {{- toYaml $root.Values.resources | nindent 10 }}
        volumeMounts:
          {{- include "sidetier.logDirMountsWith" (dict "root" $root "writable" $writable) | trim | nindent 10 }}
          {{- include "sidetier.otherMounts" $root | nindent 10 }}
          {{- with .mounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- range $root.Values.logDirVolumes }}
      - name: {{ .name }}
        {{- if .hostPath }}
        hostPath:
          path: {{ .hostPath }}
          type: Directory
        {{- else }}
        persistentVolumeClaim:
          claimName: {{ get $broker.claims .name }}
          {{- if not (or $writable (include "sidetier.holdsSpool" (list $root .mountPath))) }}
          readOnly: true
          {{- end }}
        {{- end }}
      {{- end }}
      {{- include "sidetier.volumes" $root | nindent 6 }}
      {{- with .volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}
