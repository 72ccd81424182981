{{/*
Templates for the StatefulSet of the brokers. Usage in a chart that has this one as a dependency:

  spec:
    template:
      metadata:
        annotations:
          {{- include "sidetier.sidecar.podAnnotations" .Subcharts.sidetier | nindent 10 }}
      spec:
        terminationGracePeriodSeconds: 120  # the broker's shutdown, and the sidecar's after it
        initContainers:
          {{- include "sidetier.sidecar.container" .Subcharts.sidetier | nindent 10 }}
        volumes:
          {{- include "sidetier.sidecar.volumes" .Subcharts.sidetier | nindent 10 }}
*/}}

{{/* A list with one native sidecar: an init container that keeps running. Kubernetes starts it before the
broker, and it waits for the broker's log dirs. Kubernetes stops it after the broker, so that it also
uploads the segments that the broker closes last. No startup probe: the broker would wait for it. With a
spool, another init container creates its directories first, because they do not exist on a new volume. */}}
{{- define "sidetier.sidecar.container" -}}
{{- with dig "uploader" "pins" "spool" list .Values.config -}}
- name: sidetier-spool
  {{- include "sidetier.container.common" (dict "root" $ "sidecar" true) | nindent 2 }}
  command:
    {{- concat (list "mkdir" "-p") . | toYaml | nindent 4 }}
  resources:
    {{- toYaml $.Values.resources | nindent 4 }}
  volumeMounts:
    {{- include "sidetier.logDirMounts" $ | trim | nindent 4 }}
{{ end -}}
- name: sidetier
  restartPolicy: Always
  {{- include "sidetier.container.common" (dict "root" . "sidecar" true) | nindent 2 }}
  {{- include "sidetier.container.run" . | nindent 2 }}
  {{- with .Values.livenessProbe }}
  livenessProbe:
    {{- include "sidetier.probe" (dict "probe" . "path" "/healthz") | nindent 4 }}
  {{- end }}
  {{- if and .Values.sidecar.readinessProbe .Values.readinessProbe }}
  readinessProbe:
    {{- include "sidetier.probe" (dict "probe" .Values.readinessProbe "path" "/readyz") | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  volumeMounts:
    {{- include "sidetier.logDirMounts" . | trim | nindent 4 }}
    {{- include "sidetier.otherMounts" . | nindent 4 }}
{{- end -}}

{{/* Volumes of the container other than those of the log dirs, which the pod already has. */}}
{{- define "sidetier.sidecar.volumes" -}}
{{- include "sidetier.volumesWith" (dict "root" . "optional" true) -}}
{{- end -}}

{{/* A changed configuration restarts the pods. */}}
{{- define "sidetier.sidecar.podAnnotations" -}}
checksum/sidetier-config: {{ include "sidetier.config" . | sha256sum }}
{{- end -}}
