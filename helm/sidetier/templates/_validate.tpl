{{/* Checks that the schema cannot express. Included by configmap.yaml, which every mode renders. */}}
{{- define "sidetier.validate" -}}
{{- include "sidetier.validate.config" . -}}
{{- include "sidetier.validate.http" . -}}
{{- include "sidetier.validate.mode" . -}}
{{- include "sidetier.validate.logDirs" . -}}
{{- include "sidetier.validate.secrets" . -}}
{{- include "sidetier.validate.grace" . -}}
{{- include "sidetier.validate.monitoring" . -}}
{{- include "sidetier.validate.archive" . -}}
{{- end -}}

{{- define "sidetier.validate.config" -}}
{{- $config := .Values.config -}}
{{- if not (dig "cluster" "name" "" $config) -}}
{{- fail "config.cluster.name is required: the cluster's name on the store, part of every key (config: {cluster: {name: prod-a}})" -}}
{{- end -}}
{{- if not (dig "storage" "url" "" $config) -}}
{{- fail "config.storage.url is required: where segments are stored (config: {storage: {url: s3://my-bucket/kafka}})" -}}
{{- end -}}
{{- if not $config.log_dirs -}}
{{- fail "config.log_dirs is required: the brokers' log.dirs, every one of them (config: {log_dirs: [/var/lib/kafka/data]})" -}}
{{- end -}}
{{- end -}}

{{/* Probes and Prometheus connect from outside of the pod. */}}
{{- define "sidetier.validate.http" -}}
{{- $host := dig "http" "host" "0.0.0.0" .Values.config -}}
{{- if and (ne .Values.mode "jobs") (or (eq $host "localhost") (eq $host "::1") (hasPrefix "127." $host)) -}}
{{- fail (printf "config.http.host is %s, which only the container itself reaches: the liveness probe would fail, and the sidecar be started again and again; leave it out" $host) -}}
{{- end -}}
{{- if and (or (ne .Values.mode "jobs") .Values.serve.enabled) (eq (include "sidetier.port" .) "0") -}}
{{- fail "config.http.port is 0, which lets the system choose: probes and monitors have to know it" -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.validate.mode" -}}
{{- if and .Values.kafka.enabled (ne .Values.mode "sidecar") -}}
{{- fail (printf "mode is %s, and kafka.enabled is true: the small Kafka has the sidecar in its own pods; set mode: sidecar" .Values.mode) -}}
{{- end -}}
{{- if and .Values.backfill.enabled (not .Values.backfill.brokers) -}}
{{- fail "backfill.enabled is true, and backfill.brokers is empty: name each broker whose log dirs are to be archived" -}}
{{- end -}}
{{- if and .Values.hydrate.enabled (not .Values.hydrate.brokers) -}}
{{- fail "hydrate.enabled is true, and hydrate.brokers is empty: name each stopped broker whose partitions are to be placed" -}}
{{- end -}}
{{- if and .Values.hydrate.enabled (not .Values.hydrate.planVolume) -}}
{{- fail "hydrate.enabled is true, and hydrate.planVolume is empty: name the volume that holds plan.json (hydrate: {planVolume: {configMap: {name: hydrate-plan}}})" -}}
{{- end -}}
{{- if .Values.kafka.enabled -}}
{{- range $i, $directory := .Values.config.log_dirs -}}
{{- if regexMatch "[*?[]" $directory -}}
{{- fail (printf "config.log_dirs[%d] is %s, a pattern, and kafka.enabled is true: the small Kafka is told the same names" $i $directory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") (not (empty .Values.startupProbe)) -}}
{{- fail "startupProbe in mode sidecar: the broker would wait for it, and the sidecar waits for the broker's log dirs; leave it empty" -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.validate.logDirs" -}}
{{- $mode := .Values.mode -}}
{{- $volumes := .Values.logDirVolumes -}}
{{- $config := .Values.config -}}
{{- if or (ne $mode "jobs") .Values.backfill.enabled .Values.hydrate.enabled -}}
{{- range $i, $directory := $config.log_dirs -}}
{{- $held := "" -}}
{{- range $volumes -}}{{- $held = printf "%s%s" $held (include "sidetier.isBelow" (list $directory .mountPath)) -}}{{- end -}}
{{- if not $held -}}
{{- fail (printf "config.log_dirs[%d] is %s, which lies in no volume: add the one that holds it to logDirVolumes (name, mountPath)" $i $directory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne $mode "jobs" -}}
{{- range $i, $directory := dig "uploader" "pins" "spool" list $config -}}
{{- $held := "" -}}
{{- range $volumes -}}{{- $held = printf "%s%s" $held (include "sidetier.isBelow" (list (dir $directory) .mountPath)) -}}{{- end -}}
{{- if not $held -}}
{{- fail (printf "config.uploader.pins.spool[%d] is %s, which is no directory in a volume of logDirVolumes: links need the mount of the log dirs" $i $directory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $i, $volume := $volumes -}}
{{- if and (eq $mode "sidecar") $volume.hostPath (not $.Values.backfill.enabled) -}}
{{- fail (printf "logDirVolumes[%d].hostPath in mode sidecar: the sidecar mounts the volume %s of the broker's pod; hostPath is for mode nodeAgent" $i $volume.name) -}}
{{- end -}}
{{- if and (eq $mode "nodeAgent") (not $volume.hostPath) -}}
{{- fail (printf "logDirVolumes[%d].hostPath is required in mode nodeAgent: the directory on the node that holds the brokers' log dirs" $i) -}}
{{- end -}}
{{- range $part := list "backfill" "hydrate" -}}
{{- $jobs := get $.Values $part -}}
{{- range ternary $jobs.brokers list $jobs.enabled -}}
{{- if and (not $volume.hostPath) (not (dig $volume.name "" (default dict .claims))) -}}
{{- fail (printf "%s.brokers %s names no claim for the volume %s: claims: {%s: ...}, or logDirVolumes[%d].hostPath" $part .name $volume.name $volume.name $i) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.validate.secrets" -}}
{{- $variables := splitList "\n" (include "sidetier.secretVariables" .Values.config) -}}
{{- range $i, $variable := .Values.extraEnv -}}
{{- if and (has $variable.name $variables) (hasPrefix "SIDETIER_" $variable.name) -}}
{{- fail (printf "extraEnv[%d]: %s holds a secret, and a name that begins with SIDETIER_ is a setting's: choose another" $i $variable.name) -}}
{{- end -}}
{{- if and (has $variable.name $variables) (not (dig "secretKeyRef" "" (default dict $variable.valueFrom))) -}}
{{- fail (printf "extraEnv[%d]: %s holds a secret (config refers to it by {env: %s}): give it by valueFrom.secretKeyRef" $i $variable.name $variable.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.validate.grace" -}}
{{- $drain := include "sidetier.seconds" (dig "uploader" "shutdown_grace" "25s" .Values.config) | float64 -}}
{{- if le (float64 .Values.terminationGracePeriodSeconds) $drain -}}
{{- fail (printf "terminationGracePeriodSeconds is %v, not longer than config.uploader.shutdown_grace (%v s): uploads under way would be cut off" .Values.terminationGracePeriodSeconds $drain) -}}
{{- end -}}
{{- if and .Values.kafka.enabled (le (float64 .Values.kafka.terminationGracePeriodSeconds) $drain) -}}
{{- fail (printf "kafka.terminationGracePeriodSeconds is %v, not longer than config.uploader.shutdown_grace (%v s)" .Values.kafka.terminationGracePeriodSeconds $drain) -}}
{{- end -}}
{{- end -}}

{{- define "sidetier.validate.monitoring" -}}
{{- $foreign := and (eq .Values.mode "sidecar") (not .Values.kafka.enabled) -}}
{{- if and $foreign (or .Values.podMonitor.enabled .Values.service.enabled .Values.fleet.enabled) (not .Values.sidecar.podSelector) -}}
{{- fail "sidecar.podSelector is required for podMonitor, service and fleet: the labels of the brokers' pods" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) -}}
{{- fail "serviceMonitor.enabled needs service.enabled; a podMonitor does without" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "podMonitor and serviceMonitor are both enabled: everything would be counted twice" -}}
{{- end -}}
{{- if and $foreign .Values.networkPolicy.enabled -}}
{{- fail (printf "networkPolicy in mode sidecar would cut the brokers' own ports off: allow port %s in the brokers' policy instead" (include "sidetier.port" .)) -}}
{{- end -}}
{{- end -}}

{{/* Compares with the configuration of the installed release in the cluster. Without one (helm template, a first
installation), the sidecar's own check of the store at its start is the only protection. */}}
{{- define "sidetier.validate.archive" -}}
{{- $installed := lookup "v1" "ConfigMap" .Release.Namespace (include "sidetier.fullname" .) -}}
{{- if and $installed (not .Values.acknowledgeOtherArchive) -}}
{{- $before := fromYaml (dig "data" "sidetier.yaml" "{}" $installed) -}}
{{- $now := .Values.config -}}
{{- range $path := list (list "storage" "prefix_entropy_bits" 5) (list "cluster" "name" "") (list "storage" "url" "") -}}
{{- $old := dig (index $path 0) (index $path 1) (index $path 2) $before | toString -}}
{{- $new := dig (index $path 0) (index $path 1) (index $path 2) $now | toString -}}
{{- if ne $old $new -}}
{{- fail (printf "config.%s.%s was %s and would become %s: that begins another archive, and what is stored would not be found there; set it back, or acknowledgeOtherArchive: true" (index $path 0) (index $path 1) $old $new) -}}
{{- end -}}
{{- end -}}
{{- $old := include "sidetier.otherPlaces" $before -}}
{{- $new := include "sidetier.otherPlaces" $now -}}
{{- if ne $old $new -}}
{{- fail (printf "config.storage.overrides were [%s] and would become [%s]: topics would be stored in another place, and what is stored would not be found there; set them back, or acknowledgeOtherArchive: true" $old $new) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The topics that a configuration stores in another place, with the place. */}}
{{- define "sidetier.otherPlaces" -}}
{{- $places := list -}}
{{- range dig "storage" "overrides" list . -}}{{- $places = append $places (printf "%s: %s" .topics .url) -}}{{- end -}}
{{- join ", " $places -}}
{{- end -}}
