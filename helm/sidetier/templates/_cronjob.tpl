{{/* One CronJob: (dict "root" $ "name" full name "component" label "where" path of its values "job" values) */}}
{{- define "sidetier.cronJob" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $job := .job -}}
{{- if gt (len $name) 52 }}
{{- fail (printf "%s: the CronJob would be named %s, and Kubernetes takes 52 characters: choose a shorter name, or fullnameOverride" .where $name) }}
{{- end -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ $name }}
  labels:
    {{- include "sidetier.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  schedule: {{ $job.schedule | quote }}
  {{- with $job.timeZone }}
  timeZone: {{ . }}
  {{- end }}
  suspend: {{ default false $job.suspend }}
  concurrencyPolicy: {{ default "Forbid" $job.concurrencyPolicy }}
  {{- range $key := list "successfulJobsHistoryLimit" "failedJobsHistoryLimit" "startingDeadlineSeconds" }}
  {{- if hasKey $job $key }}
  {{ $key }}: {{ get $job $key }}
  {{- end }}
  {{- end }}
  jobTemplate:
    spec:
      # Exit codes 2, 3 and 4 end the Job without a retry: 3, for example, reports a finding, and a retry
      # would report the same.
      backoffLimit: {{ dig "backoffLimit" 2 $job }}
      {{- with $job.activeDeadlineSeconds }}
      activeDeadlineSeconds: {{ . }}
      {{- end }}
      podFailurePolicy:
        rules:
          - action: FailJob
            onExitCodes:
              containerName: sidetier
              operator: In
              values: [2, 3, 4]
      template:
        metadata:
          {{- include "sidetier.podMetadata" (dict "root" $root "component" .component) | nindent 10 }}
        spec:
          {{- include "sidetier.podSpec" $root | nindent 10 }}
          {{- with $root.Values.nodeSelector }}
          nodeSelector:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          restartPolicy: Never
          containers:
            - name: sidetier
              {{- include "sidetier.container.common" (dict "root" $root "image" $job.image "env" $job.extraEnv) | nindent 14 }}
              {{- with $job.command }}
              command:
                {{- toYaml . | nindent 16 }}
              {{- end }}
              {{- with $job.args }}
              args:
                {{- toYaml . | nindent 16 }}
              {{- end }}
              resources:
                {{- toYaml (default $root.Values.resources $job.resources) | nindent 16 }}
              volumeMounts:
                {{- include "sidetier.otherMounts" $root | nindent 16 }}
                {{- with $job.extraVolumeMounts }}
                {{- toYaml . | nindent 16 }}
                {{- end }}
          volumes:
            {{- include "sidetier.volumes" $root | nindent 12 }}
            {{- with $job.extraVolumes }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
{{- end -}}
